"""What a worker does at an exchange: the base classes, and the two forms that several rules share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from torch import Tensor

    from clew.training.asynchronous.flat_model import FlatModel
    from clew.training.asynchronous.messaging.transport import Allocate
    from clew.training.config import TrainConfig

    Request = Callable[[str, Tensor | None], Tensor]
    """Sends a kind of message with a tensor to all masters and returns their answer, put together. The kind `commit`
    has no answer."""


class WorkerSide(ABC):
    """The worker's part of a rule."""

    restarts_from_master: ClassVar[bool] = True
    """Whether a worker that was idle continues from the newest central weights. If so, the central weights may be
    written over the worker's own when they arrive."""

    def __init__(self, model: FlatModel, config: TrainConfig, allocate: Allocate) -> None:
        """Prepare the tensor that is sent.

        Args:
            model: The worker's model as one flat tensor.
            config: The settings of the training.
            allocate: Allocates the memory of tensors that are sent to the masters.
        """
        self.model, self.config = model, config
        self.outgoing = model.send_buffer(allocate)
        """What is sent: an update, then the buffers of the model."""

    @property
    def receive_buffer(self) -> Tensor | None:
        """Where the central weights may be written on arrival; None if the worker still needs its own weights then."""
        direct = self.restarts_from_master and not self.config.asynchronous.overlap
        return self.model.memory if direct and self.model.memory.device.type == "cpu" else None

    @property
    def _update(self) -> Tensor:
        return self.outgoing[: self.model.parameter_count]

    def start(self, central: Tensor) -> None:
        """Take over the central weights."""
        self.model.load(central)

    @abstractmethod
    def exchange(self, request: Request, fields: dict[str, Any]) -> None:
        """Send an update and take the answer.

        Args:
            request: Sends a message to the masters and returns their answer.
            fields: The values sent with the update; a rule may add its own.
        """

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that only this worker has, for a checkpoint."""
        return {}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Continue from tensors that `state` returned."""
        for name, tensor in self.state().items():
            tensor.copy_(state[name])


class PushWorkerSide(WorkerSide):
    """A worker side that sends first. It can train on the next batches while it waits for the answer (overlap)."""

    def __init__(self, model: FlatModel, config: TrainConfig, allocate: Allocate) -> None:
        super().__init__(model, config, allocate)
        self._previous = model.send_buffer(allocate) if config.asynchronous.overlap else self.outgoing

    def exchange(self, request: Request, fields: dict[str, Any]) -> None:
        self.pack(fields)
        self.take_answer(request("push", self.outgoing))

    def pack(self, fields: dict[str, Any]) -> None:
        """Write the update into `outgoing`. With overlap, the answer taken next belongs to the update before."""
        self.outgoing, self._previous = self._previous, self.outgoing
        self.write_update(fields)
        self.model.write_buffers(self.outgoing)

    @abstractmethod
    def write_update(self, fields: dict[str, Any]) -> None:
        """Write this worker's update into `outgoing`."""

    @abstractmethod
    def take_answer(self, central: Tensor) -> None:
        """Use the central weights that the masters returned."""


class GradientSender(PushWorkerSide):
    """Sends the gradient of the last batch, and continues from the central weights."""

    def __init__(self, model: FlatModel, config: TrainConfig, allocate: Allocate) -> None:
        super().__init__(model, config, allocate)
        double_buffered = config.asynchronous.overlap and model.memory.device.type == "cpu"
        self._next = allocate((model.memory.dtype, model.length)) if double_buffered else None
        """With overlap: where the next weights arrive while the model trains with the previous ones."""

    @property
    def receive_buffer(self) -> Tensor | None:
        return super().receive_buffer if self._next is None else self._next

    def write_update(self, fields: dict[str, Any]) -> None:
        import torch

        gradients = [parameter.grad for parameter in self.model.parameters if parameter.grad is not None]
        torch._foreach_copy_(self.model.parameter_views(self._update), gradients)

    def take_answer(self, central: Tensor) -> None:
        if central is self._next:
            self._next = self.model.swap_memory(central)
        else:
            self.model.load(central)


class DifferenceSender(PushWorkerSide):
    """Sends how far the weights moved since the last exchange, and continues from the central weights."""

    def __init__(self, model: FlatModel, config: TrainConfig, allocate: Allocate) -> None:
        super().__init__(model, config, allocate)
        self._base = model.weights.new_empty(model.weights.shape)
        """The weights after the last exchange."""

    def start(self, central: Tensor) -> None:
        super().start(central)
        self._base.copy_(self.model.weights)

    def write_update(self, fields: dict[str, Any]) -> None:
        import torch

        if self._base.device == self.outgoing.device:
            torch.sub(self._base, self.model.weights, out=self._update)
        else:
            self._update.copy_(self._base - self.model.weights)
        if self.config.asynchronous.overlap:  # what is packed now must not be sent again before the first answer
            self._base.copy_(self.model.weights)

    def take_answer(self, central: Tensor) -> None:
        self.model.load(central)
        if self.config.asynchronous.overlap:  # the answer does not contain the update that was just packed
            self.model.weights.sub_(self._update.to(self.model.weights.device))
        self._base.copy_(self.model.weights)
