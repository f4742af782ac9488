"""One run: the same for the ServerApp and for the engines that need none."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid

from server.apart import apart
from server.config import RunConfig
from server.errors import RunAborted
from server.events import event_files
from server.factory import build_strategy
from server.progress import byte_text, progress_line
from server.run_folder import RunFolder
from server.task import Task
from strategies import RoundRecord, TooFewClientsError
from strategies.arrays import pack
from strategies.messages import float_shapes

__all__ = ["run"]


def run(
    config: RunConfig,
    grid: Grid,
    *,
    wait: float,
    tell: Callable[[str], None] = lambda line: print(line, flush=True),
    facts: Mapping[str, Any] | None = None,
    lean: bool = False,
) -> Path:
    """Run the rounds and write the run's folder.

    Parameters
    ----------
    config : RunConfig
        What to run.
    grid : Grid
        Where the clients are.
    wait : float
        Seconds to wait for enough clients.
    tell : callable
        Gets each line of the progress.
    facts : mapping, optional
        Written to `config.toml` beside the config.
    lean : bool
        Make the model that training starts from in a process of its own, so that this one imports
        torch only when it evaluates: half a gigabyte less until then, a second more at the first
        evaluation. In a simulation, whose clients train in this process, it would save nothing.

    Returns
    -------
    Path
        The folder with the results, absolute.

    Raises
    ------
    UserError
        If the data is not found, too few clients connect, or the results cannot be written.
    """
    task = Task(config)
    start = apart(task.start) if lean else task.start()
    arrays, num_classes = pack(start.weights), start.num_classes
    del start
    strategy = build_strategy(config, wait=wait)
    try:
        config.sketch().sizes(float_shapes(arrays))
    except ValueError as error:
        raise RunAborted(f"sketch-layers = {config.sketch_layers!r}: {error}") from error

    with RunFolder(config, facts) as folder, _flower_speaks_up_only_to_warn():
        first_round = 1
        if folder.checkpoint is not None:
            arrays, first_round = folder.checkpoint.model, folder.checkpoint.round + 1
            strategy.load_state_dict(folder.checkpoint.state)
            tell(f"going on after round {folder.checkpoint.round}")
        tell(f"results go to {folder.path}")
        last, skipped = RoundRecord(0), 0
        initial = [arrays]
        del arrays

        def on_round(record: RoundRecord, current: ArrayRecord) -> None:
            nonlocal last, skipped
            last = record
            skipped += record.skipped is not None
            folder.write_round(record, current, strategy.state_dict())
            watch(record)
            tell(progress_line(record, config.num_server_rounds))

        try:
            with event_files(folder.path / "tensorboard") as watch:
                result = strategy.start(
                    grid,
                    initial.pop(),  # so that it ends with the first round
                    num_rounds=config.num_server_rounds,
                    train_config=_train_config(config, num_classes),
                    evaluate_config=ConfigRecord({"num-classes": num_classes}),
                    evaluate_fn=lambda _, current: task.evaluate(current),
                    evaluate_every=config.evaluate_every,
                    first_round=first_round,
                    on_round=on_round,
                )
        except TooFewClientsError as error:
            raise RunAborted(str(error)) from error
        folder.write_model(result.arrays)
        if skipped and skipped == config.num_server_rounds - first_round + 1:
            name, reason = next(iter(last.failed.items()), ("", last.skipped))
            raise RunAborted(
                f"every round was skipped; the last: {last.skipped}"
                + (f" ({name}: {reason})" if name else "")
            )
    from server.figures import save_figures  # matplotlib takes a second to import

    save_figures(folder.path)
    for line in _summary(folder.path, last):
        tell(line)
    return folder.path


def _train_config(config: RunConfig, num_classes: int) -> ConfigRecord:
    return ConfigRecord(
        {
            "local-steps": config.local_steps,
            "batch-size": config.batch_size,
            "learning-rate": config.learning_rate,
            "client-threads": config.client_threads,
            "num-classes": num_classes,
        }
    )


def _summary(folder: Path, last: RoundRecord) -> Iterator[str]:
    from server.results import load_run

    rounds = load_run(folder).rounds
    down = sum(sum(line["bytes-down"].values()) for line in rounds)
    up = sum(sum(line["bytes-up"].values()) for line in rounds)
    skipped = sum("skipped" in line for line in rounds)
    yield ""
    yield f"{len(rounds)} rounds, {skipped} skipped; {byte_text(down)} down, {byte_text(up)} up"
    if "accuracy" in last.metrics:
        worst, by_client = last.metrics["worst-accuracy"], last.metrics["accuracy-by-client"]
        who = min(by_client, key=by_client.__getitem__)
        yield f"accuracy {last.metrics['accuracy']:.3f}, worst client {worst:.3f} (client {who})"
    yield f"results: {folder}"
    for picture in sorted(folder.glob("*.png")):
        yield f"picture: {picture}"


@contextmanager
def _flower_speaks_up_only_to_warn() -> Iterator[None]:
    """Keep Flower's several lines a round out of the one line a round."""
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
