"""A model as one flat tensor."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import torch
from torch import Tensor, nn

from clew.errors import ConfigError
from clew.training.asynchronous.messaging.transport import Shape, empty


class Vector:
    """The parameters of a model, which become views into one tensor, and its buffers, which travel behind them.

    Buffers that are no floating-point numbers (counts of batches) travel as such and come back rounded.
    """

    def __init__(self, model: nn.Module, room: Callable[[Shape], Tensor] = empty) -> None:
        """`room`: makes room for weights that are in memory."""
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        kinds = {(parameter.dtype, parameter.device) for parameter in self.parameters}
        if len(kinds) != 1:
            raise ConfigError("an asynchronous strategy needs parameters of one type on one device; use allreduce")
        self._buffers = [buffer for _, buffer in sorted(model.named_buffers())]
        self.size = sum(parameter.numel() for parameter in self.parameters)
        self.length = self.size + sum(buffer.numel() for buffer in self._buffers)
        ((dtype, device),) = kinds
        self.memory = (
            room((dtype, self.length)) if device.type == "cpu" else torch.empty(self.length, dtype=dtype, device=device)
        )
        """Room for a whole copy, as it travels, of which the parameters are a part."""
        self.flat = self.memory[: self.size]
        torch.cat([parameter.detach().reshape(-1) for parameter in self.parameters], out=self.flat)
        self._point()

    def adopt(self, values: Tensor) -> Tensor:
        """Make such a copy the memory of the model; the memory it had, which is free now."""
        former, self.memory = self.memory, values
        self.flat = values[: self.size]
        self._point()
        self.read_buffers(values)
        return former

    def views(self, flat: Tensor) -> list[Tensor]:
        """The part of each parameter in a flat tensor."""
        found, place = [], 0
        for parameter in self.parameters:
            found.append(flat[place : place + parameter.numel()].view_as(parameter))
            place += parameter.numel()
        return found

    def _point(self) -> None:
        for parameter, view in zip(self.parameters, self.views(self.flat), strict=True):
            parameter.data = view

    @torch.no_grad()
    def write_buffers(self, out: Tensor) -> None:
        """Copy the buffers to where they travel."""
        place = self.size
        for buffer in self._buffers:
            out[place : place + buffer.numel()].copy_(buffer.reshape(-1))
            place += buffer.numel()

    @torch.no_grad()
    def read_buffers(self, values: Tensor) -> None:
        """Copy them back."""
        place = self.size
        for buffer in self._buffers:
            given = values[place : place + buffer.numel()]
            buffer.copy_((given if buffer.is_floating_point() else given.round()).view_as(buffer))
            place += buffer.numel()

    def whole(self) -> Tensor:
        """A copy of everything, in memory."""
        values = torch.empty(self.length, dtype=self.flat.dtype)
        values[: self.size].copy_(self.flat)
        self.write_buffers(values)
        return values

    def fill(self, values: Tensor) -> None:
        """Take everything from such a copy, which may lie in `memory` already."""
        if values.data_ptr() != self.memory.data_ptr():
            self.flat.copy_(values[: self.size])
        self.read_buffers(values)


def fingerprint(model: nn.Module) -> str:
    """What two models must have in common to learn together: names, shapes and types."""
    told = [f"{name} {tuple(tensor.shape)} {tensor.dtype}" for name, tensor in model.state_dict().items()]
    return hashlib.sha256("\n".join(told).encode()).hexdigest()[:16]
