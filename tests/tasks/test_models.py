from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

from tasks.models import build_model, imagenet_weights, initial_model

SHAPES = [
    ("softmax", (1, 8, 8)),
    ("softmax", (20,)),
    ("cnn", (1, 8, 8)),
    ("cnn", (1, 28, 28)),
    ("cnn", (3, 33, 32)),
    ("vgg16", (3, 32, 32)),
    ("vgg16-imagenet", (3, 32, 32)),
]


@pytest.fixture
def user_models(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("user_models")
    monkeypatch.setitem(__import__("sys").modules, "user_models", module)

    def linear(shape: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(shape[0], classes))

    def broken(shape: tuple[int, ...], classes: int) -> nn.Module:
        raise RuntimeError("no\nway")

    vars(module).update(
        linear=linear,
        broken=broken,
        number=lambda shape, classes: 3,
        narrow=lambda shape, classes: nn.Linear(5, classes),
        short=lambda shape, classes: nn.Linear(shape[0], classes - 1),
        constant=7,
    )
    return module


@pytest.mark.parametrize(("name", "shape"), SHAPES)
def test_logits_are_finite_and_of_the_right_shape(name: str, shape: tuple[int, ...]) -> None:
    model = build_model(name, shape, 7, seed=0)
    x = torch.rand(3, *shape, generator=torch.Generator().manual_seed(0))
    logits = model(x)
    assert logits.shape == (3, 7)
    assert torch.isfinite(logits).all()
    logits.sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())


@pytest.mark.parametrize(("name", "shape"), SHAPES)
def test_seed_decides_the_weights_and_nothing_else_changes(
    name: str, shape: tuple[int, ...]
) -> None:
    before = torch.get_rng_state()
    states = [build_model(name, shape, 7, seed=seed).state_dict() for seed in (1, 1, 2)]
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(states[0][k], states[1][k]) for k in states[0])
    assert any(not torch.equal(states[0][k], states[2][k]) for k in states[0])


def test_cnns_memory_format_shows_in_its_speed_alone() -> None:
    model = build_model("cnn", (3, 12, 8), 5, seed=0)
    assert model.conv2.weight.is_contiguous(memory_format=torch.channels_last)
    plain = build_model("cnn", (3, 12, 8), 5, seed=0).to(memory_format=torch.contiguous_format)
    assert plain.conv2.weight.is_contiguous()
    x = torch.rand(6, 3, 12, 8, generator=torch.Generator().manual_seed(0))
    y = torch.arange(6) % 5
    for net in (model, plain):
        nn.functional.cross_entropy(net(x), y).backward()
    torch.testing.assert_close(model(x), plain(x))
    for own, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad)


def test_vgg16_is_torchvisions_but_for_the_classifier() -> None:
    import torchvision

    model = build_model("vgg16", (3, 32, 32), 10, seed=0)
    with torch.device("meta"):
        original = torchvision.models.vgg16()
    ours = {k: v.shape for k, v in model.features.state_dict().items()}  # type: ignore[operator, union-attr]
    assert ours == {k: v.shape for k, v in original.features.state_dict().items()}
    assert sum(p.numel() for p in model.classifier.parameters()) == 513 * 10  # type: ignore[union-attr]


def test_users_model(user_models: ModuleType) -> None:
    before = torch.get_rng_state()
    first, second = (build_model("user_models:linear", (4,), 3, seed=5) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert first.training
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        (
            "resnet",
            (4,),
            "model 'resnet': must be one of softmax, cnn, vgg16, vgg16-imagenet, or module",
        ),
        ("cnn", (4,), "model 'cnn': input shape (4,), expected (channels, height, width)"),
        ("cnn", (1, 3, 8), "of at least 4×4"),
        ("vgg16", (1, 32, 32), "model 'vgg16': input shape (1, 32, 32), expected (3, height, "),
        ("vgg16", (3, 28, 28), "of at least 32×32"),
        ("nowhere:f", (4,), "model 'nowhere:f': cannot import module 'nowhere': "),
        (":f", (4,), "model ':f': expected module:function"),
        ("user_models:absent", (4,), "module 'user_models' has no function 'absent'"),
        ("user_models:constant", (4,), "module 'user_models' has no function 'constant'"),
        ("user_models:broken", (4,), "the function failed: RuntimeError: no"),
        ("user_models:number", (4,), "the function returned int, expected a torch.nn.Module"),
        ("user_models:narrow", (4,), "it does not take input of shape (n, 4): "),
        ("user_models:short", (4,), "it maps 2 examples to shape (2, 2), expected (2, 3)"),
    ],
)
def test_bad_models(
    name: str, shape: tuple[int, ...], message: str, user_models: ModuleType
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as raised:
        build_model(name, shape, 3, seed=0)
    assert "\n" not in str(raised.value)


def test_one_class_is_no_classification() -> None:
    with pytest.raises(ValueError, match="num_classes=1: must be at least 2"):
        build_model("softmax", (4,), 1, seed=0)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give torch hub an empty folder; return the place of VGG16's weights in it."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(torch.hub, "_hub_dir", None)
    file = imagenet_weights()
    assert tmp_path in file.parents
    file.parent.mkdir(parents=True)
    return file


def test_training_starts_from_the_imagenet_weights(hub: Path) -> None:
    other = build_model("vgg16", (3, 32, 32), 1000, seed=7).state_dict()
    stored = {k: v for k, v in other.items() if k.startswith("features.")}
    torch.save({**stored, "classifier.0.weight": torch.zeros(3)}, hub)
    model = initial_model("vgg16-imagenet", (3, 32, 32), 10, seed=0)
    state = model.state_dict()
    assert all(torch.equal(state[key], value) for key, value in stored.items())
    assert state["classifier.weight"].shape == (10, 512)
    # Images in [0, 1] are standardised on the way in.
    plain = build_model("vgg16", (3, 32, 32), 10, seed=0)
    plain.load_state_dict(state)
    mean, deviation = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    x = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    standardised = (x - mean[:, None, None]) / deviation[:, None, None]
    torch.testing.assert_close(model(x), plain(standardised))


def test_clients_need_no_imagenet_weights(hub: Path) -> None:
    assert not hub.exists()
    build_model("vgg16-imagenet", (3, 32, 32), 10, seed=0)
    with pytest.raises(ValueError, match=r"put torchvision's vgg16-397923af\.pth in ") as raised:
        initial_model("vgg16-imagenet", (3, 32, 32), 10, seed=0)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("content", [b"no", {"features.0.weight": torch.zeros(2)}, {}])
def test_bad_imagenet_weights(hub: Path, content: object) -> None:
    if isinstance(content, bytes):
        hub.write_bytes(content)
    else:
        torch.save(content, hub)
    with pytest.raises(ValueError, match="does not hold VGG16's weights") as raised:
        initial_model("vgg16-imagenet", (3, 32, 32), 10, seed=0)
    assert "\n" not in str(raised.value)


def test_other_models_start_as_they_are_built() -> None:
    first = initial_model("cnn", (1, 8, 8), 3, seed=4).state_dict()
    second = build_model("cnn", (1, 8, 8), 3, seed=4).state_dict()
    assert all(torch.equal(first[key], second[key]) for key in second)


def test_pooling_before_the_relu_changes_no_bit() -> None:
    model = build_model("cnn", (1, 28, 28), 10, seed=0)
    layers = dict(model.named_children())
    names = ["conv1", "relu1", "pool1", "conv2", "relu2", "pool2"]
    names += ["flatten", "linear", "relu3", "classifier"]
    usual = nn.Sequential(*(layers[name] for name in names))
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(16, 1, 28, 28, generator=generator)
    x[x < 0.5] = 0  # as images have: ties in every window
    outputs, parameters = model(x), list(model.parameters())
    assert torch.equal(outputs, usual(x))
    for own, other in zip(
        torch.autograd.grad(outputs.square().sum(), parameters),
        torch.autograd.grad(usual(x).square().sum(), parameters),
        strict=True,
    ):
        assert torch.equal(own, other)
