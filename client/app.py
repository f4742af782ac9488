"""The ClientApp: answers the roll call, trains, evaluates.

Handlers always answer with a Message, an error if need be: a SuperNode whose ClientApp returns
nothing has to be restarted. In a deployment every message starts a new Python process, so whatever
is heavy is imported or read only when it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from typing import TYPE_CHECKING, cast

import numpy as np
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    RecordDict,
)
from flwr.app.typing import MetricRecordValues
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from numpy.typing import NDArray

from client.identity import client_name, local_data
from client.kept import forget, keep, kept
from client.settings import SketchSettings, TrainSettings
from strategies.answering import answer_roll_call
from strategies.messages import SKETCH, TRAIN, Arrays
from strategies.randomness import derive_rng
from strategies.records import Record, config_of, content_of, metrics_of
from strategies.updates import subtract
from tasks.client_data import ClientData
from tasks.config import TaskConfig

if TYPE_CHECKING:
    from torch.nn import Module

    from client.training import Trained

__all__ = ["BATCHED_MODELS", "answer_cohort", "app"]

Handler = Callable[[Message, Context], RecordDict]

app = ClientApp()

BATCHED_MODELS = frozenset({"softmax"})  # a convolution is no faster for many clients at once


def _answers(handler: Handler) -> Callable[[Message, Context], Message]:
    @wraps(handler)
    def answer(message: Message, context: Context) -> Message:
        return _answer(handler, message, context)

    return answer


def _answer(handler: Handler, message: Message, context: Context) -> Message:
    """Turn a handler's result, or whatever it raises, into a Message that names the client."""
    name = client_name(context)
    try:
        content = handler(message, context)
    except Exception as error:
        reason = f"{name}: {type(error).__name__}: {error}"
        return Message(
            Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=reason), reply_to=message
        )
    content["client"] = config_of({"name": name})
    return Message(content, reply_to=message)


@dataclass(frozen=True)
class _Work:
    """What a client is asked to do, with what; of what is done already, the results."""

    task: TaskConfig
    settings: TrainSettings
    data: ClientData
    trained: Trained | None = None
    loss: float | None = None

    @classmethod
    def read(cls, message: Message, context: Context) -> _Work:
        task = TaskConfig.from_run_config(context.run_config)
        return cls(task, TrainSettings.read(_config(message)), local_data(context, task))


@app.query("name")
@_answers
def name(message: Message, context: Context) -> RecordDict:
    """Say who this is and how many training examples it has."""
    data = local_data(context, TaskConfig.from_run_config(context.run_config))
    return _reply(message, {"num-examples": len(data.y_train)})


@app.train("sketch")
@_answers
def sketch(message: Message, context: Context) -> RecordDict:
    """Phase 1: report what the strategy needs to know, and keep the work for phase 2."""
    return _sketch(message, context, _Work.read(message, context))


@app.train()
@_answers
def train(message: Message, context: Context) -> RecordDict:
    """Phase 2: send the model after training, from what was kept or from the model received."""
    return _train(message, context, _Work.read(message, context))


def _sketch(message: Message, context: Context, work: _Work) -> RecordDict:
    from client import training

    settings, data, loss = work.settings, work.data, work.loss
    wanted = SketchSettings.read(_config(message))
    received = _arrays(message)
    training.use_threads(settings.threads)

    def load() -> Module:
        return training.load_model(work.task.model, settings.num_classes, data, received)

    needs = settings.needs
    update: Arrays | None = None
    if "loss" in needs and loss is None:
        loss = float(training.losses(load(), data).mean())
    asks_batch_loss = "batch-loss" in needs and loss is None
    left, left_metrics = received, {}
    if needs & {"sketch", "norm"} or asks_batch_loss:
        if wanted.trains(needs):
            if wanted.keep and wanted.train_needs:
                left_metrics = _loss_metrics(training.losses(load(), data))
            trained = work.trained or training.train(
                load(), data, settings, _batches_rng(settings, context)
            )
            left, left_metrics["train-loss"] = trained.arrays, trained.loss
            batch_loss = trained.first_loss
            # In gradient units, the sum of the mini-batch gradients (ADCS, Section 3.1).
            update = {
                key: value / np.float32(settings.learning_rate)
                for key, value in subtract(received, left).items()
            }
        else:
            update, batch_loss = training.first_gradient(
                load(), data, settings, _batches_rng(settings, context)
            )
        loss = batch_loss if asks_batch_loss else loss
    name, examples = client_name(context), len(data.y_train)
    content = answer_roll_call(message, name=name, examples=examples, update=update, loss=loss)

    # State last: what is written before an exception stays in a deployment, not in a simulation.
    if wanted.keep:
        keep(context, left, left_metrics, settings.round)
    return content


def _train(message: Message, context: Context, work: _Work) -> RecordDict:
    settings, data, trained = work.settings, work.data, work.trained
    metrics: dict[str, float] = {"num-examples": len(data.y_train)}
    if _config(message)["kept"]:
        found = kept(context, settings.round)
        if found is None:
            return _reply(message, {**metrics, "needs-model": 1})
        forget(context)
        start, left_metrics = found
        if "train-loss" in left_metrics:
            return _reply(message, {**left_metrics, **metrics}, arrays=start)
    else:
        start = _arrays(message)

    from client import training  # not before: what was kept is sent without torch

    training.use_threads(settings.threads)
    if settings.needs or trained is None:
        model = training.load_model(work.task.model, settings.num_classes, data, start)
        if settings.needs:
            metrics |= _loss_metrics(training.losses(model, data))
        if trained is None:
            trained = training.train(model, data, settings, _batches_rng(settings, context))
    return _reply(message, {**metrics, "train-loss": trained.loss}, arrays=trained.arrays)


def answer_cohort(messages: Sequence[Message], contexts: Sequence[Context]) -> list[Message] | None:
    """Answer `train` or `train.sketch` messages of one kind that carry the same records.

    Softmax regression is trained for all of them in one batched computation, which is several times
    faster, and its losses are taken without a torch module; the replies equal those of the handlers
    within float32 rounding.

    Parameters
    ----------
    messages : sequence of K Message
        The same but for the node they go to.
    contexts : sequence of K Context
        The clients' own; changed as the handlers change them.

    Returns
    -------
    list of K Message, or None if they have to be answered one by one.
    """
    task = TaskConfig.from_run_config(contexts[0].run_config)
    kind = messages[0].metadata.message_type
    if kind not in (SKETCH, TRAIN) or task.model not in BATCHED_MODELS:
        return None
    config = _config(messages[0])
    settings = TrainSettings.read(config)
    received: ArrayRecord | None
    if kind == SKETCH:
        trains = SketchSettings.read(config).trains(settings.needs)
        asks_loss = "loss" in settings.needs
        asks_batch_loss = settings.needs == {"batch-loss"}
        received = _arrays(messages[0])
    else:
        trains, asks_loss, asks_batch_loss = True, False, False
        reuse = config["kept"]
        received = _model_all_keep(contexts, settings.round) if reuse else _arrays(messages[0])
    if received is None or not (trains or asks_loss or asks_batch_loss):
        return None
    try:
        cohort = [local_data(context, task) for context in contexts]
    except ValueError:
        return None  # each will say for itself what is wrong
    from client import training

    training.use_threads(settings.threads)
    trained: Sequence[Trained | None] = [None] * len(cohort)
    losses: Sequence[float | None] = [None] * len(cohort)
    if trains or asks_batch_loss:
        rngs = [_batches_rng(settings, context) for context in contexts]
    if trains:
        trained = training.train_softmax_cohort(cohort, received, settings, rngs)
    elif asks_batch_loss:
        losses = training.softmax_cohort_first_losses(cohort, received, settings, rngs)
    if asks_loss:
        losses = training.softmax_cohort_losses(cohort, received)
    handler = _sketch if kind == SKETCH else _train
    works = [_Work(task, settings, *own) for own in zip(cohort, trained, losses, strict=True)]
    return [
        _answer(partial(handler, work=work), message, context)
        for work, message, context in zip(works, messages, contexts, strict=True)
    ]


def _model_all_keep(contexts: Sequence[Context], server_round: int) -> ArrayRecord | None:
    """Return the model that all were sent in this round and have not trained yet, if so."""
    models = []
    for context in contexts:
        found = kept(context, server_round)
        if found is None or "train-loss" in found[1]:
            return None
        models.append(found[0])
    first = models[0]
    same = all(model.keys() == first.keys() for model in models) and all(
        model[name] is array for model in models for name, array in first.items()
    )
    return first if same else None


@app.evaluate()
@_answers
def evaluate(message: Message, context: Context) -> RecordDict:
    """Evaluate the model on the client's own test data."""
    from client import training
    from tasks.learning import evaluate as evaluate_model

    task = TaskConfig.from_run_config(context.run_config)
    data = local_data(context, task)
    num_classes = cast("int", _config(message)["num-classes"])
    arrays = _arrays(message)
    forget(context)
    model = training.load_model(task.model, num_classes, data, arrays)
    accuracy, loss = evaluate_model(model, data.x_test, data.y_test)
    return _reply(message, {"num-examples": len(data.y_test), "accuracy": accuracy, "loss": loss})


def _loss_metrics(per_example: NDArray[np.float64]) -> dict[str, float]:
    rms = float(np.sqrt(np.square(per_example).mean()))
    return {"loss": float(per_example.mean()), "loss-rms": rms}


def _reply(
    message: Message, metrics: Mapping[str, MetricRecordValues], arrays: ArrayRecord | None = None
) -> RecordDict:
    server_round = cast("int", _config(message)["round"])
    records: dict[str, Record] = {"metrics": metrics_of({**metrics, "round": server_round})}
    if arrays is not None:
        records["arrays"] = arrays
    return content_of(records)


def _batches_rng(settings: TrainSettings, context: Context) -> np.random.Generator:
    return derive_rng(settings.seed, settings.round, client_name(context), "batches")


def _config(message: Message) -> ConfigRecord:
    return cast("ConfigRecord", message.content["config"])


def _arrays(message: Message) -> ArrayRecord:
    return cast("ArrayRecord", message.content["arrays"])
