"""A model as one flat tensor, which is how weights travel between processes."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor, nn

from clew.errors import ConfigError
from clew.training.asynchronous.messaging.transport import Allocate, empty


class FlatModel:
    """The trainable parameters of a model as views into one flat tensor, followed by its buffers.

    Buffers that are not floating-point numbers (such as counts of batches) are sent as floats and rounded on arrival.
    """

    def __init__(self, model: nn.Module, allocate: Allocate = empty) -> None:
        """Move the parameters of a model into one tensor.

        Args:
            model: Its parameters become views into `memory`.
            allocate: Allocates the tensor if the model is in CPU memory.

        Raises:
            ConfigError: The parameters have several types or are on several devices.
        """
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        kinds = {(parameter.dtype, parameter.device) for parameter in self.parameters}
        if len(kinds) != 1:
            raise ConfigError("an asynchronous strategy needs parameters of one type on one device; use allreduce")
        self._buffers = [buffer for _, buffer in sorted(model.named_buffers())]
        self.parameter_count = sum(parameter.numel() for parameter in self.parameters)
        self.length = self.parameter_count + sum(buffer.numel() for buffer in self._buffers)
        """Numbers that travel: parameters and buffers."""
        ((dtype, device),) = kinds
        on_cpu = device.type == "cpu"
        self.memory = allocate((dtype, self.length)) if on_cpu else torch.empty(self.length, dtype=dtype, device=device)
        """Memory for parameters and buffers, of which `weights` is the first part."""
        self.weights = self.memory[: self.parameter_count]
        torch.cat([parameter.detach().reshape(-1) for parameter in self.parameters], out=self.weights)
        self._point_parameters()

    def send_buffer(self, allocate: Allocate) -> Tensor:
        """Return a new tensor of zeros in CPU memory for parameters and buffers, to be sent repeatedly."""
        if self.weights.device.type != "cpu":
            return torch.zeros(self.length, dtype=self.weights.dtype, pin_memory=True)
        return allocate((self.weights.dtype, self.length)).zero_()

    def swap_memory(self, values: Tensor) -> Tensor:
        """Make `values` the memory of the model, and return the memory it had before."""
        previous, self.memory = self.memory, values
        self.weights = values[: self.parameter_count]
        self._point_parameters()
        self.read_buffers(values)
        return previous

    def parameter_views(self, flat: Tensor) -> list[Tensor]:
        """Return the part of each parameter in a flat tensor, in the parameter's shape."""
        views, start = [], 0
        for parameter in self.parameters:
            views.append(flat[start : start + parameter.numel()].view_as(parameter))
            start += parameter.numel()
        return views

    def _point_parameters(self) -> None:
        for parameter, view in zip(self.parameters, self.parameter_views(self.weights), strict=True):
            parameter.data = view

    @torch.no_grad()
    def write_buffers(self, out: Tensor) -> None:
        """Copy the model's buffers to the end of a flat tensor."""
        start = self.parameter_count
        for buffer in self._buffers:
            out[start : start + buffer.numel()].copy_(buffer.reshape(-1))
            start += buffer.numel()

    @torch.no_grad()
    def read_buffers(self, values: Tensor) -> None:
        """Copy the end of a flat tensor to the model's buffers."""
        start = self.parameter_count
        for buffer in self._buffers:
            part = values[start : start + buffer.numel()]
            buffer.copy_((part if buffer.is_floating_point() else part.round()).view_as(buffer))
            start += buffer.numel()

    def copy(self) -> Tensor:
        """Return a copy of parameters and buffers in CPU memory."""
        values = torch.empty(self.length, dtype=self.weights.dtype)
        values[: self.parameter_count].copy_(self.weights)
        self.write_buffers(values)
        return values

    def load(self, values: Tensor) -> None:
        """Take parameters and buffers from a flat tensor, which may be `memory` itself."""
        if values.data_ptr() != self.memory.data_ptr():
            self.weights.copy_(values[: self.parameter_count])
        self.read_buffers(values)


def model_fingerprint(model: nn.Module) -> str:
    """Return a hash of the names, shapes and types of a model's tensors. Models that train together share it."""
    lines = [f"{name} {tuple(tensor.shape)} {tensor.dtype}" for name, tensor in model.state_dict().items()]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
