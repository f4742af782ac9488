"""What server and clients both do with a torch model: weights in and out, evaluation."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn

from tasks._arrays import scaled

__all__ = ["evaluate", "get_weights", "logits", "set_weights"]

# The data is read-only so that nobody can change what many clients share; torch says so once, and
# nothing here writes to its inputs.
warnings.filterwarnings("ignore", message="The given NumPy array is not writable")

# Large enough for fast matrix products.
_BATCH = 1024
# Large examples go through deep networks: of 64 images of 3×32×32, VGG16's activations take 110 MB,
# of 1,024 they take 800 MB and no less time.
_LARGE_EXAMPLE = 1024
_BATCH_OF_LARGE = 64


def get_weights(model: nn.Module) -> dict[str, NDArray[Any]]:
    """Return the model's parameters and buffers by name, sharing memory with the model."""
    return {name: value.detach().cpu().numpy() for name, value in model.state_dict().items()}


def set_weights(model: nn.Module, weights: Mapping[str, NDArray[Any]]) -> None:
    """Copy parameters and buffers into the model.

    Raises
    ------
    ValueError
        If names or shapes differ from the model's.
    """
    own = model.state_dict()
    if own.keys() != weights.keys():
        odd = sorted(own.keys() ^ weights.keys())
        raise ValueError(f"the weights do not fit the model: {', '.join(odd[:5])} not in both")
    given = {name: torch.from_numpy(value) for name, value in weights.items()}
    for name, value in own.items():
        if given[name].shape != value.shape:
            raise ValueError(
                f"the weights do not fit the model: {name} has shape {tuple(given[name].shape)}, "
                f"not {tuple(value.shape)}"
            )
    # `load_state_dict` takes as long as a training step of a small model.
    for name, value in own.items():  # these share memory with the model and need no gradient
        value.copy_(given[name])


def logits(model: nn.Module, x: NDArray[Any]) -> torch.Tensor:
    """Return the model's outputs, shape (n, classes), in evaluation mode; uint8 is scaled."""
    model.eval()
    step = _BATCH if x[0].size <= _LARGE_EXAMPLE else _BATCH_OF_LARGE
    batches = (torch.from_numpy(scaled(x[i : i + step])) for i in range(0, len(x), step))
    with torch.inference_mode():
        return torch.cat([model(batch) for batch in batches])


def evaluate(model: nn.Module, x: NDArray[Any], y: NDArray[Any]) -> tuple[float, float]:
    """Return accuracy (share in [0, 1]) and mean cross-entropy."""
    outputs, labels = logits(model, x), torch.from_numpy(y)
    accuracy = (outputs.argmax(dim=1) == labels).double().mean().item()
    return accuracy, nn.functional.cross_entropy(outputs, labels).item()
