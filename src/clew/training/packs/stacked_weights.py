"""The weights of many equal models in one table, a model a row."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from clew.core.config import Section
from clew.training.packs import dropout

_PLAIN = (bool, int, float, str, tuple, list, dict, type(None))


def signature(model: nn.Module) -> str:
    """What models must share to be stacked: layers, their settings (but for rates of dropout), shapes and types."""
    layers = []
    for name, layer in model.named_modules():
        kept = {key: value for key, value in vars(layer).items() if isinstance(value, (*_PLAIN, Section))}
        for key in [each for each in kept if each.startswith("_") and isinstance(kept[each], (dict, list, tuple))]:
            del kept[key]  # torch's own books
        if type(layer) in dropout.KINDS:
            kept.pop("p")
        layers.append([name, type(layer).__qualname__, {k: _told(v) for k, v in kept.items()}])
    tensors = [[n, list(t.shape), str(t.dtype), t.requires_grad] for n, t in _tensors(model).items()]
    return json.dumps([layers, tensors], sort_keys=True, default=_kind)


def _kind(value: object) -> str:
    """An object that JSON does not know: its type alone, because its words may name a place in memory."""
    return type(value).__qualname__


def _told(value: Any) -> Any:
    return value.model_dump(mode="json") if isinstance(value, Section) else value


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return dict([*model.named_parameters(), *model.named_buffers()])


def shares_weights(model: nn.Module) -> bool:
    """Whether two layers have the same parameter."""
    return len(list(model.parameters())) != len(list(model.named_parameters(remove_duplicate=False)))


class Lent:
    """A place where a gradient is wanted, for kernels that can write it there. Who asks first in a step is given it: a
    weight that is used twice has a second gradient, and autograd adds them up."""

    def __init__(self, place: Tensor) -> None:
        self._place, self._free = place, True

    def take(self) -> Tensor | None:
        found, self._free = self._place if self._free else None, False
        return found

    def free(self) -> Tensor:
        """For the next step; the place."""
        self._free = True
        return self._place


class Stack:
    """Equal models as one: `weights` (models, parameters) and everything else that a model has, stacked."""

    def __init__(self, models: Sequence[nn.Module], seeds: Sequence[int], device: torch.device) -> None:
        rates = [dropout.rates(each) for each in models]
        self.base = copy.deepcopy(models[0]).to(device).train()
        """The network, for its forward pass; its own weights are not used."""
        self.dropouts = dropout.replace(self.base, {name for name in rates[0] if not any(r[name] for r in rates)})
        learned = [name for name, each in models[0].named_parameters() if each.requires_grad]
        self._shapes = {name: dict(models[0].named_parameters())[name].shape for name in learned}
        rows = [[dict(each.named_parameters())[name].detach().reshape(-1) for name in learned] for each in models]
        self.weights = torch.stack([torch.cat(row) for row in rows]).to(device)
        self.gradients = torch.zeros_like(self.weights)
        fixed = [name for name in _tensors(models[0]) if name not in self._shapes]
        self.fixed = {
            name: torch.stack([_tensors(each)[name].detach() for each in models]).to(device) for name in fixed
        }
        """Buffers, and parameters that are not learned."""
        self._kept = [name for name in models[0].state_dict() if name not in self._shapes]
        self._drop = {name: [dropout.threshold_of(rate[name]) for rate in rates] for name in self.dropouts}
        self.keys = dropout.Keys(seeds, len(self.dropouts))
        self.key = torch.zeros((len(self.dropouts), len(models)), dtype=torch.int32, device=device)
        """Those of dropout in this step."""
        self._look()

    def __len__(self) -> int:
        return len(self.weights)

    def _look(self) -> None:
        """The weights by name, as looks at the table that gradients are taken with respect to; and the gradients."""
        self.leaves, self.slopes, first = dict[str, Tensor](), dict[str, Lent](), 0
        for name, shape in self._shapes.items():
            last = first + shape.numel()
            self.leaves[name] = self.weights[:, first:last].view(len(self), *shape).detach().requires_grad_()
            self.slopes[name] = Lent(self.gradients[:, first:last].view(len(self), *shape))
            first = last
        self.states: dict[str, Tensor] = dict(self.fixed)
        for place, (name, found) in enumerate(self._drop.items()):
            own = self.weights.device
            self.states[f"{name}.key"] = self.key[place]
            self.states[f"{name}.threshold"] = torch.tensor([t for t, _ in found], dtype=torch.int32, device=own)
            self.states[f"{name}.scale"] = torch.tensor([s for _, s in found], dtype=self.weights.dtype, device=own)

    def keep(self, places: Tensor) -> None:
        """Only these models are left."""
        chosen = places.to(self.weights.device)
        self.weights = self.weights[chosen].clone()
        self.gradients = torch.zeros_like(self.weights)
        self.fixed = {name: each[chosen].clone() for name, each in self.fixed.items()}
        self._drop = {name: [found[row] for row in places.tolist()] for name, found in self._drop.items()}
        self.keys.keep(places)
        self.key = self.key[:, chosen].clone()
        self._look()

    def collect(self, found: Sequence[Tensor]) -> None:
        """Gradients of all leaves, into their table, unless they were written there already."""
        apart = [(own.free(), each) for own, each in zip(self.slopes.values(), found, strict=True)]
        apart = [(own, each) for own, each in apart if own.data_ptr() != each.data_ptr()]
        if len(apart) == len(found):
            torch.cat([each.reshape(len(self), -1) for each in found], 1, out=self.gradients)
            return
        for own, each in apart:
            own.copy_(each)

    def snapshot(self) -> tuple[Tensor, dict[str, Tensor]]:
        """A copy of all that changes."""
        return self.weights.clone(), {name: each.clone() for name, each in self.fixed.items()}

    def state_dict(self, row: int, of: tuple[Tensor, Mapping[str, Tensor]] | None = None) -> dict[str, Tensor]:
        """The weights and statistics of one model, now or in a snapshot, as that of the model itself."""
        weights, fixed = of or (self.weights, self.fixed)
        found, first = dict[str, Tensor](), 0
        for name, shape in self._shapes.items():
            last = first + shape.numel()
            found[name] = weights[row, first:last].view(shape)
            first = last
        return found | {name: fixed[name][row] for name in self._kept if name in fixed}

    def fill(self, row: int, state: Mapping[str, Tensor]) -> None:
        """Put one model's weights and statistics back."""
        own = self.state_dict(row)
        for name, tensor in state.items():
            own[name].copy_(tensor)

    def split(self, row: Tensor) -> list[Tensor]:
        """A row of numbers, one a weight, by parameter: in the order and the shapes of the model's own."""
        sizes = [shape.numel() for shape in self._shapes.values()]
        return [part.view(shape) for part, shape in zip(torch.split(row, sizes), self._shapes.values(), strict=True)]
