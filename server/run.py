"""One run: the same for the ServerApp and for the engines that need none."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid

from server.config import RunConfig
from server.errors import RunAborted
from server.events import event_files
from server.factory import build_strategy
from server.progress import byte_text, progress_line
from server.run_folder import RunFolder
from strategies import RoundRecord, TooFewClientsError
from strategies.arrays import pack, view
from strategies.messages import float_shapes
from tasks.data import TestData, load_test_data
from tasks.learning import evaluate, get_weights, set_weights
from tasks.models import build_model, initial_model

__all__ = ["run"]


def run(
    config: RunConfig,
    grid: Grid,
    *,
    wait: float,
    tell: Callable[[str], None] = lambda line: print(line, flush=True),
    facts: Mapping[str, Any] | None = None,
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

    Returns
    -------
    Path
        The folder with the results, absolute.

    Raises
    ------
    UserError
        If the data is not found, too few clients connect, or the results cannot be written.
    """
    try:
        test = load_test_data(config.dataset, config.data_dir, seed=config.seed)
        shape = test.x_test.shape[1:]
        start = initial_model(config.model, shape, test.num_classes, seed=config.seed)
        arrays = pack(get_weights(start))
        del start
    except ValueError as error:
        raise RunAborted(str(error)) from error
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

        def central(server_round: int, current: ArrayRecord) -> MetricRecord:
            # Built anew: kept, it would take a second model's memory between the evaluations.
            model = build_model(config.model, shape, test.num_classes, seed=config.seed)
            return _evaluate(model, current, test)

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
                    train_config=_train_config(config, test.num_classes),
                    evaluate_config=ConfigRecord({"num-classes": test.num_classes}),
                    evaluate_fn=central,
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


def _evaluate(model: Any, arrays: ArrayRecord, test: TestData) -> MetricRecord:
    set_weights(model, {name: view(array) for name, array in arrays.items()})
    accuracy, loss = evaluate(model, test.x_test, test.y_test)
    return MetricRecord({"accuracy": accuracy, "loss": loss})


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
