"""The blocks on lists of cells against plain torch in float64: every kind of image, gradients included."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from torch import Tensor
from torch.nn import functional as f

from clew.recipes.lartpc import ops
from clew.recipes.lartpc.kernels import cpu, portable

from .events import Pixels, listed

SIZES = [(25, 25), (27, 33), (5, 9), (10, 64), (44, 5)]


def _random(height: int, width: int) -> Tensor:
    return torch.rand(2, height, width, dtype=torch.float64)


def _sparse(height: int, width: int) -> Tensor:
    return _random(height, width) * (torch.rand(2, height, width) < 0.01)


def _corners(height: int, width: int) -> Tensor:
    image = torch.zeros(2, height, width, dtype=torch.float64)
    image[0, 0, 0], image[0, -1, -1], image[1, 0, -1], image[1, -1, 0] = 1.0, 2.0, 3.0, 4.0
    return image


def _one_full(height: int, width: int) -> Tensor:
    image = torch.zeros(2, height, width, dtype=torch.float64)
    image[1] = torch.rand(height, width, dtype=torch.float64)
    return image


IMAGES: dict[str, Callable[[int, int], Tensor]] = {
    "random": _random,
    "sparse": _sparse,
    "corners": _corners,
    "empty and full": _one_full,
    "empty": lambda height, width: torch.zeros(2, height, width, dtype=torch.float64),
    "ties": lambda height, width: torch.ones(2, height, width, dtype=torch.float64),
}


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(1)


@pytest.fixture(params=[portable, cpu], ids=["portable", "cpu"])
def maker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module: ModuleType = request.param
    monkeypatch.setattr(ops, "kernel_module", lambda tensor: module)
    return module


def _weights(*shape: int) -> list[Tensor]:
    tensors = [torch.randn(*shape, 5, 5, dtype=torch.float64) / 5, torch.randn(shape[0], dtype=torch.float64) / 5]
    return [each.requires_grad_() for each in tensors]


def _cells(pixels: Pixels, size: tuple[int, int], weights: list[Tensor]) -> tuple[Tensor, Tensor]:
    fill = ops.background(None, *weights[:2])
    first, _, active, _ = ops.pixels(*pixels, fill, *weights[:2], *size)
    after = ops.background(fill, *weights[2:])
    return first, ops.cells(first, active, fill, after, *weights[2:])[0]


def _plain(images: Tensor, weights: list[Tensor]) -> tuple[Tensor, Tensor]:
    first = f.max_pool2d(f.elu(f.conv2d(images.unsqueeze(1), weights[0], weights[1], padding=2)), 5)
    second = f.max_pool2d(f.elu(f.conv2d(first, weights[2], weights[3], padding=2)), 5)
    return first.permute(0, 2, 3, 1), second.permute(0, 2, 3, 1)


@pytest.mark.parametrize("kind", IMAGES)
@pytest.mark.parametrize("size", [(25, 25), (53, 64), (26, 79)], ids=str)
def test_two_blocks_are_those_of_plain_torch(kind: str, size: tuple[int, int], maker: ModuleType) -> None:
    images, weights = IMAGES[kind](*size), [*_weights(3, 1), *_weights(4, 3)]
    cells, plain = _cells(listed(images), size, weights), _plain(images, weights)
    upstream = torch.randn_like(plain[1])
    gradients = [torch.autograd.grad((each[1] * upstream).sum(), weights) for each in (cells, plain)]
    for value, expected in zip([*cells, *gradients[0]], [*plain, *gradients[1]], strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_gradients_reach_the_image_of_any_size(size: tuple[int, int], maker: ModuleType) -> None:
    x = torch.randn(2, *size, 3, dtype=torch.float64, requires_grad=True)
    weight, bias = _weights(4, 3)
    everywhere = torch.ones(2, *size, dtype=torch.bool)
    zeros = torch.zeros(4, dtype=torch.float64)
    y = ops.cells(x, everywhere, zeros[:3], zeros, weight, bias)[0]
    plain = f.max_pool2d(f.elu(f.conv2d(x.permute(0, 3, 1, 2), weight, bias, padding=2)), 5).permute(0, 2, 3, 1)
    upstream, inputs = torch.randn_like(plain), (x, weight, bias)
    gradients, expected = (torch.autograd.grad((each * upstream).sum(), inputs) for each in (y, plain))
    torch.testing.assert_close([y, *gradients], [plain, *expected], rtol=1e-10, atol=1e-12)


def test_makers_agree_on_winners_and_on_what_is_active() -> None:
    size, weights = (53, 64), [*_weights(3, 1), *_weights(4, 3)]
    pixels, fill = listed(_sparse(*size)), torch.full((3,), 0.25, dtype=torch.float64)
    first, second = (each.pixels(*pixels, fill, *weights[:2], *size) for each in (portable, cpu))
    assert torch.equal(first[2], second[2]) and 0 < first[2].sum() < first[2].numel()
    listed_cells = first[2].unsqueeze(3)
    assert torch.equal(first[1] * listed_cells, second[1] * listed_cells)
    assert torch.equal(first[0][~first[2]], fill.expand(int((~first[2]).sum()), 3))


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_change_nothing(threads: int) -> None:
    size, weights = (53, 64), [*_weights(3, 1), *_weights(4, 3)]
    images, before = _random(*size), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        outputs = [_cells(listed(images), size, weights)[1] for _ in range(2)]
        gradients = [torch.autograd.grad(each.sum(), weights) for each in outputs]
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, two) for one, two in zip(*gradients, strict=True))
    torch.testing.assert_close(outputs[0], _plain(images, weights)[1], rtol=1e-10, atol=1e-12)


def test_torch_finds_nothing_wrong_with_the_operations() -> None:
    size, weights = (27, 30), [*_weights(3, 1), *_weights(2, 3)]
    index, charge, offsets = listed(_sparse(*size) + _corners(*size))
    fill = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    arguments = (index, charge, offsets, fill, *weights[:2], *size)
    torch.library.opcheck(ops.pixels, arguments, test_utils=checks)
    x, _, active, _ = (each.detach() for each in ops.pixels(*arguments))
    torch.library.opcheck(ops.cells, (x.requires_grad_(), active, fill, fill[:2], *weights[2:]), test_utils=checks)
