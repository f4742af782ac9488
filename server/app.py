"""The ServerApp: one run, from its config to its folder of results."""

from __future__ import annotations

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.superlink.grid.http_grid import HttpGrid

from server.config import RunConfig
from server.errors import told_in_one_line
from server.run import run

__all__ = ["app"]

app = ServerApp()

# A simulation's clients are there within seconds; real sites may take a while to connect.
_WAIT_SIMULATION = 10.0
_WAIT_DEPLOYMENT = 600.0


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run what the run config says; mistakes in it are told in one line."""
    deployed = isinstance(grid, HttpGrid)
    wait = _WAIT_DEPLOYMENT if deployed else _WAIT_SIMULATION
    with told_in_one_line():
        config = RunConfig.parse(context.run_config)
        run(config, grid, wait=wait, lean=deployed)
