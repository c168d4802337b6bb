"""Optimisers: those of torch, without the import of its compiler."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

from clew.training.config import OPTIMIZERS
from clew.training.optimizer import without_compiler

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
