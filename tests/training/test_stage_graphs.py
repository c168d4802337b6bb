"""Models that are divided into stages: the stages one after the other compute what the model computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clew.errors import ConfigError
from clew.testing.toys import ToyBranches
from clew.training.strategies.stage_graphs import Division, divide, keep_only, named_tensors


class Block(nn.Module):
    """A layer with a residual connection, and a decision that torch.fx cannot trace."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.norm(self.layer(x)).tanh() if bool(x.isfinite().all()) else x


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block(), Block()])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Network(nn.Module):
    """Two inputs, one of them with a default, a token, and dropout of the training mode in its own code."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.ones(4))
        self.encoder, self.head, self.spare = Encoder(), nn.Linear(4, 2), nn.Linear(2, 2)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, int]:
        kept = x.abs().sum(1, keepdim=True) > 0.5
        encoded = self.encoder(x * self.token)
        dropped = nn.functional.dropout(encoded, 0.5, self.training)
        return self.head(dropped * kept).view(x.shape[0], 2), 3


def run_stages(division: Division, model: nn.Module, **inputs: Tensor) -> Any:
    values: Any = ()
    for stage in range(division.stages):
        own = {name: inputs[name] for name in division.inputs(stage) if name in inputs}
        values = division.stage_module(model, stage)(*values, **own)
    return values


@pytest.mark.parametrize("points", [["head"], ["encoder.blocks.1", "encoder.blocks.2"], ["encoder", "head"]])
@pytest.mark.parametrize("mode", [True, False])
def test_stages_compute_what_the_model_computes(points: list[str], mode: bool) -> None:
    model, x = Network().train(mode), torch.randn(6, 4)
    division = divide(model, points, len(points) + 1)
    torch.manual_seed(1)
    expected = model(x)[0]
    torch.manual_seed(1)
    out, constant = run_stages(division, model, x=x)
    assert torch.equal(out, expected) and constant == 3


def test_values_that_pass_by_a_stage_arrive() -> None:
    model, x = ToyBranches().model(), torch.randn(6, 3)
    division = divide(model, ["middle", "head"], 3)
    assert torch.equal(run_stages(division, model, x=x, scale=x[:, :1])["value"], model(x, x[:, :1])["value"])
    assert [len(division.received(stage)) for stage in range(3)] == [0, 2, 3]


def test_every_tensor_of_the_model_belongs_to_a_stage() -> None:
    model = Network()
    names = {name for name, _ in named_tensors(model)}
    owned = divide(model, ["encoder.blocks.1", "head"], 3).owned_names(model)
    assert set.union(*owned) == names and sum(map(len, owned)) == len(names)
    assert {"token", "spare.weight", "encoder.blocks.0.norm.running_mean"} <= owned[0]
    keep_only(model, owned[2])
    assert set(model.state_dict()) == {"head.weight", "head.bias"}


def test_of_many_split_points_those_with_equal_stages_are_used() -> None:
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(9)))
    assert divide(model, (), 3).points == ["3", "6"]
    assert divide(model, ["1", "2", "6", "8"], 3).points == ["2", "6"]


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Any:
        return self.first(self.second(self.first(x)))


class Changing(Shared):
    def forward(self, x: Tensor) -> Any:
        first = self.first(x)
        changed = first.relu_()
        return self.second(changed) + first


@pytest.mark.parametrize(
    ("model", "points", "message"),
    [
        (Network(), [], "divides an nn.Sequential, or another model at train.split_points; the model is a Network of"),
        (Network(), ["heads"], "the model has no module 'heads'; did you mean 'head'"),
        (Network(), ["spare"], r"forward\(\) does not call 'spare'"),
        (Network(), ["encoder.blocks.1.norm"], r"forward\(\) of 'encoder.blocks.1' cannot be divided"),
        (Network(), ["encoder"], "needs 3 stages, one per worker; 2 stages that train.split_points allows"),
        (Shared(), ["second"], "'first.bias' would be used by two stages"),
        (Changing(), ["second"], "'relu_' changes a tensor that a later stage uses in place"),
        (nn.Sequential(nn.Linear(2, 2)), [], "needs 2 stages, one per worker; 1 entries of the nn.Sequential"),
        (nn.Sequential(nn.Linear(2, 2), nn.Tanh()), ["1"], "stage 2 would have no parameters"),
    ],
)
def test_a_model_that_cannot_be_divided(model: nn.Module, points: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        divide(model, points, 3 if points == ["encoder"] else 2)
