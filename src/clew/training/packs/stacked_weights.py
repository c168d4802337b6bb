"""The weights of many models of the same shape as one table, with one row per member."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from clew.core.config import Section
from clew.training.packs import dropout

_PLAIN_TYPES = (bool, int, float, str, tuple, list, dict, type(None))


def model_signature(model: nn.Module) -> str:
    """Return what models must share to be stacked: layers, their settings (except dropout rates), shapes and types."""
    layers = []
    for name, layer in model.named_modules():
        settings = {key: value for key, value in vars(layer).items() if isinstance(value, (*_PLAIN_TYPES, Section))}
        containers = [key for key in settings if key.startswith("_") and isinstance(settings[key], (dict, list, tuple))]
        for key in containers:
            del settings[key]  # bookkeeping of torch
        if type(layer) in dropout.DROPOUT_LAYERS:
            settings.pop("p")
        layers.append([name, type(layer).__qualname__, {key: _to_data(value) for key, value in settings.items()}])
    tensors = [[n, list(t.shape), str(t.dtype), t.requires_grad] for n, t in _named_tensors(model).items()]
    return json.dumps([layers, tensors], sort_keys=True, default=_type_name)


def _type_name(value: object) -> str:
    """Return only the type of an object that JSON cannot hold: its text may contain a memory address."""
    return type(value).__qualname__


def _to_data(value: Any) -> Any:
    return value.model_dump(mode="json") if isinstance(value, Section) else value


def _named_tensors(model: nn.Module) -> dict[str, Tensor]:
    return dict([*model.named_parameters(), *model.named_buffers()])


def shares_weights(model: nn.Module) -> bool:
    """Return whether two layers have the same parameter."""
    return len(list(model.parameters())) != len(list(model.named_parameters(remove_duplicate=False)))


class GradientBuffer:
    """The place of a gradient in the table of gradients, into which kernels can write it directly.

    In each step only the first caller gets it: a weight that is used twice has a second gradient, which autograd adds.
    """

    def __init__(self, tensor: Tensor) -> None:
        self._tensor, self._available = tensor, True

    def claim(self) -> Tensor | None:
        """Return the place, or None if it was claimed before in this step."""
        tensor, self._available = self._tensor if self._available else None, False
        return tensor

    def release(self) -> Tensor:
        """Make the place available for the next step, and return it."""
        self._available = True
        return self._tensor


class StackedWeights:
    """Models of the same shape as one: `weights` (members, parameters), and everything else of a model, stacked."""

    def __init__(self, models: Sequence[nn.Module], seeds: Sequence[int], device: torch.device) -> None:
        """Stack models.

        Args:
            models: Models of the same signature.
            seeds: The seed of each member, for dropout.
            device: Where the weights are kept.
        """
        rates = [dropout.dropout_rates(model) for model in models]
        self.base = copy.deepcopy(models[0]).to(device).train()
        """The network, for its forward pass. Its own weights are not used."""
        inactive = {name for name in rates[0] if not any(rate[name] for rate in rates)}
        self.dropouts = dropout.replace_dropout(self.base, inactive)
        trained = [name for name, parameter in models[0].named_parameters() if parameter.requires_grad]
        self._shapes = {name: dict(models[0].named_parameters())[name].shape for name in trained}
        rows = [[dict(model.named_parameters())[name].detach().reshape(-1) for name in trained] for model in models]
        self.weights = torch.stack([torch.cat(row) for row in rows]).to(device)
        self.gradients = torch.zeros_like(self.weights)
        untrained = [name for name in _named_tensors(models[0]) if name not in self._shapes]
        self.untrained = {
            name: torch.stack([_named_tensors(model)[name].detach() for model in models]).to(device)
            for name in untrained
        }
        """Buffers, and parameters that are not trained, with a first axis of members."""
        self._saved_names = [name for name in models[0].state_dict() if name not in self._shapes]
        self._thresholds = {name: [dropout.dropout_threshold(rate[name]) for rate in rates] for name in self.dropouts}
        self.keys = dropout.DropoutKeys(seeds, len(self.dropouts))
        self.key = torch.zeros((len(self.dropouts), len(models)), dtype=torch.int32, device=device)
        """The keys of dropout in the current step."""
        self._make_views()

    def __len__(self) -> int:
        return len(self.weights)

    def _make_views(self) -> None:
        """Make views of the tables by parameter name: weights to differentiate by, and places of gradients."""
        self.leaves, self.gradient_buffers, first = dict[str, Tensor](), dict[str, GradientBuffer](), 0
        for name, shape in self._shapes.items():
            last = first + shape.numel()
            self.leaves[name] = self.weights[:, first:last].view(len(self), *shape).detach().requires_grad_()
            self.gradient_buffers[name] = GradientBuffer(self.gradients[:, first:last].view(len(self), *shape))
            first = last
        self.states: dict[str, Tensor] = dict(self.untrained)
        device, dtype = self.weights.device, self.weights.dtype
        for place, (name, thresholds) in enumerate(self._thresholds.items()):
            limits, scales = [limit for limit, _ in thresholds], [scale for _, scale in thresholds]
            self.states[f"{name}.key"] = self.key[place]
            self.states[f"{name}.threshold"] = torch.tensor(limits, dtype=torch.int32, device=device)
            self.states[f"{name}.scale"] = torch.tensor(scales, dtype=dtype, device=device)

    def keep_members(self, rows: Tensor) -> None:
        """Remove all members but these."""
        chosen = rows.to(self.weights.device)
        self.weights = self.weights[chosen].clone()
        self.gradients = torch.zeros_like(self.weights)
        self.untrained = {name: tensor[chosen].clone() for name, tensor in self.untrained.items()}
        self._thresholds = {
            name: [thresholds[row] for row in rows.tolist()] for name, thresholds in self._thresholds.items()
        }
        self.keys.keep_members(rows)
        self.key = self.key[:, chosen].clone()
        self._make_views()

    def collect_gradients(self, gradients: Sequence[Tensor]) -> None:
        """Copy the gradients of all leaves into their table, unless kernels have written them there."""
        pairs = [
            (buffer.release(), gradient)
            for buffer, gradient in zip(self.gradient_buffers.values(), gradients, strict=True)
        ]
        elsewhere = [(place, gradient) for place, gradient in pairs if place.data_ptr() != gradient.data_ptr()]
        if len(elsewhere) == len(gradients):
            torch.cat([gradient.reshape(len(self), -1) for gradient in gradients], 1, out=self.gradients)
            return
        for place, gradient in elsewhere:
            place.copy_(gradient)

    def snapshot(self) -> tuple[Tensor, dict[str, Tensor]]:
        """Return a copy of everything that training changes."""
        return self.weights.clone(), {name: tensor.clone() for name, tensor in self.untrained.items()}

    def state_dict(self, row: int, snapshot: tuple[Tensor, Mapping[str, Tensor]] | None = None) -> dict[str, Tensor]:
        """Return the state of one member, now or in a snapshot, like `state_dict` of its model. Tensors are views."""
        weights, untrained = snapshot or (self.weights, self.untrained)
        state, first = dict[str, Tensor](), 0
        for name, shape in self._shapes.items():
            last = first + shape.numel()
            state[name] = weights[row, first:last].view(shape)
            first = last
        return state | {name: untrained[name][row] for name in self._saved_names if name in untrained}

    def load_state_dict(self, row: int, state: Mapping[str, Tensor]) -> None:
        """Copy the state of one member into its row."""
        views = self.state_dict(row)
        for name, tensor in state.items():
            views[name].copy_(tensor)

    def split_row(self, row: Tensor) -> list[Tensor]:
        """Split a row of one number per weight by parameter, in the order and the shapes of the model."""
        sizes = [shape.numel() for shape in self._shapes.values()]
        return [part.view(shape) for part, shape in zip(torch.split(row, sizes), self._shapes.values(), strict=True)]
