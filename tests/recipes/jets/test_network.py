"""The networks: outputs do not depend on padding and order, and all can be exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as f

from clew import Ragged, Table
from clew.data.dataset.batch import to_batch
from clew.recipes.jets.cloud import SHAPES, CloudPixels, PixelCloud, shapes
from clew.recipes.jets.edge_convolution import Neighbours
from clew.recipes.jets.network import SEQUENCE_NETWORKS, ImageNet, Perceptron, Transformer, padded, random_flips
from clew.recipes.jets.particlenet import EdgeNetwork, ParticleNet
from clew.recipes.jets.settings import JetFeaturesNetworkConfig, JetImagesNetworkConfig, JetsNetworkConfig

SMALL = JetsNetworkConfig(width=16, layers=2, neighbours=4)
SETS = {**dict.fromkeys(SEQUENCE_NETWORKS, SMALL), "pairs": SMALL.model_copy(update={"pairs": 8})}
"""Networks over constituents by kind; "pairs" is a transformer with a network over pairs."""
OTHERS = torch.randn(5, 11, 4), torch.arange(11) < torch.tensor([[1], [11], [3], [8], [2]])
"""More jets than an export has seen, of other lengths."""


def _sequence(kind: str) -> nn.Module:
    torch.manual_seed(0)
    network: nn.Module = SEQUENCE_NETWORKS["transformer" if kind == "pairs" else kind](4, 3, SETS[kind])
    return network.eval()


@pytest.mark.parametrize("kind", SETS)
def test_padding_changes_nothing(kind: str) -> None:
    rng = np.random.default_rng(0)
    column = Ragged.from_lengths(rng.normal(size=(20, 4)).astype(np.float32), [3, 0, 12, 5])
    table, model = Table({"constituents": column}), _sequence(kind)
    with torch.no_grad():
        together = model(*padded(to_batch(table).ragged("constituents")))
        for jet in range(4):
            alone = model(*padded(to_batch(table.slice(jet, jet + 1)).ragged("constituents")))
            torch.testing.assert_close(together[jet], alone[0], rtol=1e-5, atol=1e-6)
        values, mask = padded(to_batch(table).ragged("constituents"))
        values[~mask] = 1e3
        torch.testing.assert_close(model(values, mask), together)
    assert together.isfinite().all()


@pytest.mark.parametrize("kind", SETS)
def test_no_gradient_comes_from_padding(kind: str) -> None:
    values, mask = torch.randn(2, 6, 4, requires_grad=True), torch.arange(6) < torch.tensor([[6], [2]])
    _sequence(kind)(values, mask).sum().backward()
    assert values.grad is not None and (values.grad[1, 2:] == 0).all() and (values.grad[1, :2] != 0).any()


@pytest.mark.parametrize("kind", ["transformer", "pairs", "edgeconv", "particlenet"])
def test_networks_of_sets_do_not_see_the_order(kind: str) -> None:
    model, values, mask = _sequence(kind), torch.randn(2, 5, 4), torch.ones(2, 5, dtype=torch.bool)
    order = torch.tensor([3, 1, 4, 0, 2])
    torch.testing.assert_close(model(values, mask), model(values[:, order], mask))


def test_a_gru_sees_the_order() -> None:
    values, mask, order = torch.randn(2, 5, 4), torch.ones(2, 5, dtype=torch.bool), torch.tensor([3, 1, 4, 0, 2])
    gru = _sequence("gru")
    assert not torch.allclose(gru(values, mask), gru(values[:, order], mask))


def test_neighbours_are_the_nearest_real_constituents() -> None:
    points, mask = torch.randn(3, 7, 2), torch.arange(7) < torch.tensor([[7], [3], [1]])
    near = Neighbours(points, mask, 4)
    assert near.real.sum(dim=2)[0].tolist() == [4] * 7 and near.real.sum(dim=2)[1, :3].tolist() == [2] * 3
    assert not near.real[2].any(dim=1)[0]
    apart = torch.cdist(points[0], points[0])
    nearest = apart.fill_diagonal_(torch.inf).topk(4, largest=False).values
    ways = (near.gather(points)[0] - points[0].unsqueeze(1)).norm(dim=2).sort(dim=1).values
    torch.testing.assert_close(ways, nearest, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(near.mean(near.gather(points))[1, 0], points[1, 1:3].mean(dim=0))


def test_particlenet_is_as_large_as_published() -> None:
    lite = ParticleNet(7, 2, JetsNetworkConfig(kind="particlenet", width=32, layers=2, neighbours=7))
    full = ParticleNet(7, 2, JetsNetworkConfig(kind="particlenet", width=64, layers=3, neighbours=16))
    sizes = [sum(each.numel() for each in network.parameters()) for network in (lite, full)]
    assert 26_000 <= sizes[0] <= 27_000 and 360_000 <= sizes[1] <= 370_000


def test_padding_is_not_in_the_batch_statistics_of_particlenet() -> None:
    one, other = (_sequence("particlenet").train() for _ in range(2))
    values, mask = torch.randn(6, 5, 4), torch.arange(5) < torch.tensor([[5], [3], [1], [4], [0], [2]])
    more = f.pad(values.masked_fill(~mask.unsqueeze(2), 1e3), (0, 0, 0, 4), value=1e3)
    torch.testing.assert_close(one(values, mask), other(more, f.pad(mask, (0, 4))), rtol=1e-4, atol=1e-5)
    for name, buffer in one.named_buffers():
        torch.testing.assert_close(buffer, other.get_buffer(name), rtol=1e-4, atol=1e-5)


def test_particlenet_evaluates_as_it_is_trained() -> None:
    """Training works on real constituents alone and evaluation on padded tensors, with the same result."""
    torch.manual_seed(0)
    model, values = ParticleNet(4, 3, SMALL.model_copy(update={"layers": 1})), torch.randn(400, 6, 4)
    mask = torch.arange(6) < torch.arange(400).unsqueeze(1) % 6 + 1
    for each in model.modules():
        if isinstance(each, nn.BatchNorm1d):
            each.momentum = 1.0  # the statistics are those of the last batch, but for a factor n / (n - 1)
    scores = model(values, mask)
    torch.testing.assert_close(model.eval()(values, mask), scores, rtol=0.0, atol=0.005)
    assert scores.std(dim=0).min() > 0.02


def test_messages_of_particlenet_depend_on_differences() -> None:
    """The message of an edge is the perceptron of x_i and x_j - x_i, computed edge by edge."""
    torch.manual_seed(0)
    block, state = EdgeNetwork(3, 5).eval(), torch.randn(4, 3)
    rows, real = torch.tensor([[1, 2], [0, 3], [3, 0], [2, 0]]), torch.ones(4, 2, dtype=torch.bool)
    real[3, 1] = False
    with torch.no_grad():
        for item, scores in enumerate(block(state, rows, real)):
            near = state[rows[item][real[item]]]
            edges = block.own(state[item]) + block.difference(near - state[item])
            message = block.others(f.relu(block.first(edges))).mean(dim=0)
            torch.testing.assert_close(scores, f.relu(block.shortcut(state[item : item + 1])[0] + message))


def test_a_network_of_pairs_depends_on_their_distance() -> None:
    model, values = _sequence("pairs"), torch.randn(1, 2, 4)
    moved = values + torch.tensor([0.5, 0.5, 0.0, 0.0])
    assert isinstance(model, Transformer) and model.pairs is not None
    torch.testing.assert_close(model.pairs(moved), model.pairs(values))
    far = values * torch.tensor([9.0, 9.0, 1.0, 1.0])
    assert not torch.allclose(model.pairs(far), model.pairs(values))


@pytest.mark.parametrize("side", [1.0, -1.0])
def test_shapes_do_not_depend_on_how_a_jet_is_turned(side: float) -> None:
    image = torch.zeros(3, 9, 9)
    image.view(3, -1)[:, ::7] = torch.rand(3, 12) + 0.1
    pixels = CloudPixels.of(image, 20)
    variables = shapes(pixels, image.sum(dim=(1, 2)))
    assert variables.shape == (3, SHAPES)
    turn = pixels.rotated(0.6, 0.8, side)
    torch.testing.assert_close(shapes(turn, image.sum(dim=(1, 2))), variables, rtol=1e-3, atol=1e-3)


def test_a_cloud_gives_rotated_images_the_same_scores() -> None:
    torch.manual_seed(0)
    model, image = PixelCloud(2, JetImagesNetworkConfig(width=4)).eval(), torch.rand(4, 10, 10)
    torch.testing.assert_close(model(image), model(image.flip(1)), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model(image), model(image.transpose(1, 2)), rtol=1e-4, atol=1e-4)


def test_training_images_are_rotated_and_evaluated_ones_are_not() -> None:
    torch.manual_seed(0)
    image = torch.arange(16.0).reshape(1, 4, 4).expand(64, 4, 4)
    assert len(torch.unique(random_flips(image), dim=0)) == 8
    model = ImageNet(2, JetImagesNetworkConfig(width=4)).eval()
    torch.testing.assert_close(model(image)[0], model(image)[1])
    assert torch.unique(random_flips(torch.rand(50, 3, 4)), dim=0).shape == (50, 3, 4)


@pytest.mark.parametrize("empty", [ImageNet, PixelCloud])
def test_an_empty_image_has_an_answer(empty: Any) -> None:
    assert empty(2, JetImagesNetworkConfig(width=4)).eval()(torch.zeros(2, 12, 12)).isfinite().all()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["conv", "transformer", "pairs", "edgeconv", "particlenet", "cnn", "cloud", "mlp"])
def test_networks_can_be_exported_with_free_sizes(kind: str) -> None:
    jets = torch.export.Dim("jets", min=2, max=4096)
    places = torch.export.Dim("places", min=2, max=512)
    if kind in SETS:
        model = _sequence(kind)
        example: Any = (torch.randn(3, 7, 4), torch.ones(3, 7, dtype=torch.bool))
        more: Any = OTHERS
        free: Any = ({0: jets, 1: places}, {0: jets, 1: places})
    else:
        image_networks = {
            "cnn": ImageNet(2, JetImagesNetworkConfig()),
            "cloud": PixelCloud(2, JetImagesNetworkConfig()),
        }
        model = (image_networks.get(kind) or Perceptron(4, 2, JetFeaturesNetworkConfig())).eval()
        shape = (4,) if kind == "mlp" else (30, 30)
        example, more, free = (torch.rand(3, *shape),), (torch.rand(6, *shape),), ({0: jets},)
    exported = torch.export.export(model, example, dynamic_shapes=free)
    with torch.no_grad():
        torch.testing.assert_close(exported.module()(*more), model(*more), rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore")  # torch warns at every step that this exporter is deprecated
def test_a_gru_can_be_exported_by_torchscript_alone(tmp_path: Path) -> None:
    """`torch.export` fixes the length of a GRU's sequences; the older way to ONNX leaves it free."""
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    model, path = _sequence("gru"), tmp_path / "gru.onnx"
    names = {name: {0: "jets", 1: "places"} for name in ("values", "mask")}
    example = (torch.randn(1, 7, 4), torch.ones(1, 7, dtype=torch.bool))
    torch.onnx.export(model, example, path, dynamo=False, input_names=list(names), dynamic_axes=names)
    session = runtime.InferenceSession(str(path))
    exported_scores = session.run(None, {name: each.numpy() for name, each in zip(names, OTHERS, strict=True)})[0]
    np.testing.assert_allclose(exported_scores, model(*OTHERS).detach().numpy(), rtol=1e-4, atol=1e-5)
