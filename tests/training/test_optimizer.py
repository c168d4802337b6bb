"""Optimisers: those of torch, without the import of its compiler."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import pytest
import torch

from clew.errors import ConfigError
from clew.training.config import OPTIMIZERS, OptimizerConfig, TrainConfig
from clew.training.optimizer import lr_rule, make_optimizer, without_compiler, worker_scaling

TRAIN = """
import sys
import torch
from clew.training.config import TrainConfig
from clew.training.optimizer import make_optimizer

model = torch.nn.Linear(2, 1)
optimizer = make_optimizer(list(model.parameters()), TrainConfig())
model(torch.ones(4, 2)).sum().backward()
optimizer.step()
optimizer.zero_grad()
optimizer.load_state_dict(optimizer.state_dict())
assert "sympy" not in sys.modules and "torch._dynamo.utils" not in sys.modules, "the compiler was imported"
"""
COMPILE = """
compiled = torch.compile(model, backend="eager", fullgraph=True)
assert torch.equal(compiled(torch.ones(4, 2)), model(torch.ones(4, 2)))
assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
compiled(torch.ones(4, 2)).sum().backward()
before = model.weight.clone()
optimizer.step()
assert not torch.equal(before, model.weight)
"""


@pytest.mark.long
@pytest.mark.exec
def test_a_training_imports_no_compiler_and_can_compile_later() -> None:
    done = subprocess.run([sys.executable, "-c", TRAIN + COMPILE], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_an_optimizer_makes_the_steps_of_torch(name: str) -> None:
    kind: type[torch.optim.Optimizer] = getattr(torch.optim, OPTIMIZERS[name])
    weights = []
    kinds: list[Any] = [kind, without_compiler(kind)]
    for each in kinds:
        torch.manual_seed(1)
        model = torch.nn.Linear(3, 2, bias=False)
        optimizer = each(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.rand(5, 3)).square().sum().backward()
            optimizer.step()
        assert isinstance(optimizer, kind)
        assert repr(optimizer).startswith(kind.__name__)
        weights.append(model.weight.detach())
    assert torch.equal(*weights)


@pytest.mark.parametrize(
    ("strategy", "rule", "workers", "factor"),
    [
        ("easgd", "linear", 4, 4.0),
        ("easgd", "sqrt", 4, 2.0),
        ("easgd", "none", 4, 1.0),
        ("easgd", "linear", 1, 1.0),
        ("easgd", "sqrt", 1, 1.0),
        ("downpour", "linear", 4, 1.0),
        ("allreduce", "linear", 4, 1.0),
    ],
)
def test_rates_follow_the_workers_where_steps_are_averaged(
    strategy: str, rule: str, workers: int, factor: float
) -> None:
    settings = {"strategy": strategy, "workers": workers, "optimizer": {"lr": 0.5, "lr_rule": rule}}
    config = TrainConfig.model_validate(settings)
    assert worker_scaling(config) == factor
    assert make_optimizer([torch.nn.Parameter(torch.ones(2))], config).defaults["lr"] == 0.5 * factor


def test_without_workers_the_rate_is_that_of_one() -> None:
    """As for a master, before workers have joined."""
    for rule in ("linear", "sqrt"):
        config = TrainConfig.model_validate({"strategy": "easgd", "workers": 2, "optimizer": {"lr_rule": rule}})
        assert worker_scaling(config.model_copy(update={"workers": 0})) == 1.0


@pytest.mark.parametrize(
    ("rule", "name", "used"), [("auto", "sgd", "linear"), ("auto", "adam", "sqrt"), ("none", "sgd", "none")]
)
def test_the_rule_follows_the_optimiser(rule: str, name: str, used: str) -> None:
    assert lr_rule(OptimizerConfig.model_validate({"name": name, "lr_rule": rule})) == used


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_weight_decay_and_fused_kernels_are_used_where_torch_has_them(name: str) -> None:
    accepted = inspect.signature(getattr(torch.optim, OPTIMIZERS[name])).parameters
    parameters = [torch.nn.Parameter(torch.ones(2))]
    plain = make_optimizer(parameters, TrainConfig.model_validate({"optimizer": {"name": name}}))
    assert bool(plain.defaults.get("fused")) is ("fused" in accepted)
    decaying = TrainConfig.model_validate({"optimizer": {"name": name, "weight_decay": 0.25}})
    if "weight_decay" in accepted:
        assert make_optimizer(parameters, decaying).defaults["weight_decay"] == 0.25
    else:
        with pytest.raises(ConfigError, match=f"weight_decay: {name} has none"):
            make_optimizer(parameters, decaying)


@pytest.mark.parametrize("compiled", [True, False])
def test_the_class_of_torch_is_used_where_steps_are_compiled(compiled: bool) -> None:
    config = TrainConfig.model_validate({"compile": compiled})
    assert (type(make_optimizer([torch.nn.Parameter(torch.ones(2))], config)) is torch.optim.Adam) is compiled


@pytest.mark.parametrize("kind", [torch.optim.SGD, without_compiler(torch.optim.SGD)])
def test_a_differentiable_step_records_gradients(kind: Any) -> None:
    """So weights that are leaves cannot be changed in place."""
    for differentiable in (False, True):
        weight = torch.ones(2, requires_grad=True)
        weight.grad = torch.ones(2)
        optimizer = kind([weight], lr=0.1, differentiable=differentiable)
        if differentiable:
            with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
                optimizer.step()
        else:
            optimizer.step()
            assert weight.tolist() == pytest.approx([0.9, 0.9])
