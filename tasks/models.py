"""Models by name, initialised from a seed."""

from __future__ import annotations

import math
from collections import OrderedDict
from pathlib import Path

import torch
from torch import nn

from tasks._callables import load_callable, one_line
from tasks.config import MODELS

__all__ = ["build_model", "imagenet_weights", "initial_model"]

# Mean and standard deviation of the channels that torchvision's weights were trained with.
_IMAGENET_MEAN = (0.485, 0.456, 0.406)
_IMAGENET_DEVIATION = (0.229, 0.224, 0.225)


def build_model(
    name: str, input_shape: tuple[int, ...], num_classes: int, *, seed: int
) -> nn.Module:
    """Build a classifier whose initial weights depend on `seed` alone.

    Parameters
    ----------
    name : str
        * `softmax`: multinomial logistic regression on any input.
        * `cnn`: two convolutions and two linear layers, for images of 4×4 and more.
        * `vgg16`: torchvision's VGG16 for 3-channel images of 32×32 and more, randomly initialised.
          Its three classifier layers are for 224×224 images; one linear layer on the 512 averaged
          features replaces them, which leaves 14.7 million parameters (59 MB).
        * `vgg16-imagenet`: the same for images in [0, 1], whose channels it standardises as
          torchvision's weights expect. Here it is randomly initialised too: see `initial_model`.
        * `module:function`: a user's own, called as `f(input_shape, num_classes)`.
    input_shape : tuple of int
        Shape of one example, channels first.
    num_classes : int
        At least 2.
    seed : int
        Torch's global random state is the same before and after.

    Returns
    -------
    module that maps (n, *input_shape) float32 to (n, num_classes) logits.

    Raises
    ------
    ValueError
        On an unknown name, an input shape the model cannot take, or a user's function that cannot
        be imported, fails, or returns something else than such a module.
    """
    if ":" not in name and name not in MODELS:
        raise ValueError(f"model {name!r}: must be one of {', '.join(MODELS)}, or module:function")
    if num_classes < 2:
        raise ValueError(f"num_classes={num_classes}: must be at least 2")
    # On the CPU generator alone: torch.manual_seed would also reseed every accelerator.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        if name == "softmax":
            return _softmax(input_shape, num_classes)
        if name == "cnn":
            return _cnn(input_shape, num_classes)
        if name in ("vgg16", "vgg16-imagenet"):
            model = _vgg16(name, input_shape, num_classes)
            if name == "vgg16-imagenet":
                model.register_forward_pre_hook(_standardise)
            return model
        return _users(name, input_shape, num_classes)


def initial_model(
    name: str, input_shape: tuple[int, ...], num_classes: int, *, seed: int
) -> nn.Module:
    """Build the model that training starts from: `build_model`, with pre-trained weights if any.

    Only who starts the training needs it; clients receive the weights. For `vgg16-imagenet` the
    convolutions are torchvision's from the file `imagenet_weights()`; the classifier is new.

    Raises
    ------
    ValueError
        As `build_model`, and if the file is missing or holds something else.
    """
    model = build_model(name, input_shape, num_classes, seed=seed)
    if name == "vgg16-imagenet":
        _load_features(model, imagenet_weights())
    return model


def imagenet_weights() -> Path:
    """Return where torchvision keeps VGG16's ImageNet weights; the file may not exist."""
    return Path(torch.hub.get_dir(), "checkpoints", "vgg16-397923af.pth")


def _load_features(model: nn.Module, file: Path) -> None:
    if not file.is_file():
        raise ValueError(
            f"model 'vgg16-imagenet': put torchvision's {file.name} in {file.parent}, or use "
            "model 'vgg16', which is randomly initialised"
        )
    own = {key: value for key, value in model.state_dict().items() if key.startswith("features.")}
    try:
        stored = torch.load(file, map_location="cpu", weights_only=True)
        for key, value in own.items():
            if stored[key].shape != value.shape:
                raise ValueError(f"{key} has shape {tuple(stored[key].shape)}")
            value.copy_(stored[key])
    except Exception as error:  # pickle, zipfile and torch each raise their own
        raise ValueError(
            f"model 'vgg16-imagenet': {file} does not hold VGG16's weights: {one_line(error)}"
        ) from error


def _standardise(model: nn.Module, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
    (x,) = inputs
    mean, deviation = x.new_tensor(_IMAGENET_MEAN), x.new_tensor(_IMAGENET_DEVIATION)
    return ((x - mean[:, None, None]) / deviation[:, None, None],)


def _softmax(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return nn.Sequential(
        OrderedDict(flatten=nn.Flatten(), classifier=nn.Linear(math.prod(input_shape), num_classes))
    )


def _cnn(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    if len(input_shape) != 3 or min(input_shape[1:]) < 4:
        raise ValueError(
            f"model 'cnn': input shape {input_shape}, expected (channels, height, width) "
            "of at least 4×4"
        )
    channels, height, width = input_shape
    # Pooling first, then the ReLU: the same values and gradients from a quarter of the numbers.
    model = nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(channels, 16, 3, padding=1),
            pool1=nn.MaxPool2d(2),
            relu1=nn.ReLU(),
            conv2=nn.Conv2d(16, 32, 3, padding=1),
            pool2=nn.MaxPool2d(2),
            relu2=nn.ReLU(),
            flatten=nn.Flatten(),
            linear=nn.Linear(32 * (height // 4) * (width // 4), 64),
            relu3=nn.ReLU(),
            classifier=nn.Linear(64, num_classes),
        )
    )
    # On a CPU a training step takes a third less time: pooling runs along the channels.
    return model.to(memory_format=torch.channels_last)


def _vgg16(name: str, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    if len(input_shape) != 3 or input_shape[0] != 3 or min(input_shape[1:]) < 32:
        raise ValueError(
            f"model {name!r}: input shape {input_shape}, expected (3, height, width) "
            "of at least 32×32"
        )
    import torchvision

    with torch.device("meta"):  # its own classifier, never used, would take 480 MB
        model: nn.Module = torchvision.models.vgg16(weights=None, init_weights=False)
        model.avgpool = nn.AdaptiveAvgPool2d(1)
        model.classifier = nn.Linear(512, num_classes)
    model.to_empty(device="cpu")
    for layer in model.modules():  # as torchvision initialises its VGG
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, 0, 0.01)
        if isinstance(layer, nn.Conv2d | nn.Linear) and layer.bias is not None:
            nn.init.zeros_(layer.bias)
    return model


def _users(name: str, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    function = load_callable(name, "model")
    try:
        model = function(input_shape, num_classes)
    except Exception as error:
        raise ValueError(f"model {name!r}: the function failed: {one_line(error)}") from error
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"model {name!r}: the function returned {type(model).__name__}, "
            "expected a torch.nn.Module"
        )
    training = model.training
    try:
        with torch.no_grad():
            logits = model.eval()(torch.zeros(2, *input_shape))
    except Exception as error:
        raise ValueError(
            f"model {name!r}: it does not take input of shape (n, "
            f"{', '.join(map(str, input_shape))}): {one_line(error)}"
        ) from error
    model.train(training)
    shape = tuple(getattr(logits, "shape", ()))
    if shape != (2, num_classes):
        raise ValueError(
            f"model {name!r}: it maps 2 examples to shape {shape}, expected {(2, num_classes)}"
        )
    return model
