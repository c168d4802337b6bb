"""How a worker exchanges tensors with the masters that hold the weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from clew.errors import ConfigError
from clew.training.asynchronous.flat_model import FlatModel
from clew.training.asynchronous.layout import COORDINATOR, WeightSlice
from clew.training.asynchronous.master_weights import is_finite
from clew.training.asynchronous.messaging import Message, MessageTransport
from clew.training.asynchronous.rules.worker_side import WorkerSide
from clew.training.config import TrainConfig


class WeightExchange:
    """Sends each slice of a tensor to its master, and puts the answers together."""

    def __init__(
        self,
        transport: MessageTransport,
        config: TrainConfig,
        slices: Sequence[WeightSlice],
        model: FlatModel,
        side: WorkerSide,
        on_status: Callable[[Message], None],
    ) -> None:
        """Prepare the exchange.

        Args:
            transport: Reaches the masters.
            config: The settings of the training.
            slices: Which master holds which slice.
            model: The worker's model.
            side: The worker's side of the rule.
            on_status: Called with each message of the coordinator.
        """
        self.transport, self.slices, self._side, self._on_status = transport, list(slices), side, on_status
        self._config = config.asynchronous
        self._buffer = transport.allocate((model.weights.dtype, model.length))
        self.versions: dict[int, int] = {}
        """The version of the last weights from each master."""
        self._coordinator_has_slice = COORDINATOR in [part.master for part in self.slices]

    def request(self, kind: str, tensor: Tensor | None, fields: dict[str, Any]) -> Tensor:
        """Send a message to all masters and return their weights.

        Args:
            kind: `pull` asks for the weights, `push` sends an update and asks for the weights, `commit` sends an update
                that is answered without weights.
            tensor: The update, or None.
            fields: The worker's report, sent with an update. The result of the check for NaN is added.

        Returns:
            The central weights and buffers. For `commit`, a tensor without meaning.
        """
        if tensor is not None:
            fields["finite"] = is_finite(tensor)
            tensor = tensor if self._config.transfer == "float32" else tensor.bfloat16()
        direct = self._side.receive_buffer
        target = self._buffer if direct is None else direct
        self._send_slices(kind, tensor, fields, target)
        report_separately = kind != "pull" and not self._coordinator_has_slice
        if report_separately:
            self.transport.send(COORDINATOR, "report", fields)
        if kind == "commit":
            self._on_status(self.answer(COORDINATOR))
            return self._buffer
        return self._collect(target, replaceable=direct is None, status_expected=report_separately)

    def _send_slices(self, kind: str, tensor: Tensor | None, fields: dict[str, Any], target: Tensor) -> None:
        answered = kind != "commit"
        self.transport.receive_buffers = (
            {master: target[start:stop] for master, start, stop in self.slices} if answered else {}
        )
        for master, start, stop in self.slices:
            sent = {**(fields if kind != "pull" else {}), "version": self.versions.get(master, 0)}
            self.transport.send(master, kind, sent, None if tensor is None else tensor[start:stop], stable=True)

    def _collect(self, target: Tensor, *, replaceable: bool, status_expected: bool) -> Tensor:
        """Receive the weights of all masters, and the coordinator's status if it is sent separately."""
        waiting = {part.master: part for part in self.slices}
        while waiting:
            message = self.receive()
            part = waiting.pop(message.peer, None)
            self._on_status(message)
            if part is None:
                status_expected = False
                continue
            self.versions[message.peer] = int(message.fields["version"])
            assert message.tensor is not None
            place = target[part.start : part.stop]
            complete = len(place) == len(target) and place.dtype == message.tensor.dtype
            if replaceable and complete and not self._config.overlap:
                target = message.tensor
            elif message.tensor.data_ptr() != place.data_ptr():
                place.copy_(message.tensor)
        if status_expected:
            self._on_status(self.answer(COORDINATOR))
        return target

    def answer(self, peer: int) -> Message:
        """Return the next message, which must be from this peer."""
        message = self.receive()
        assert message.peer == peer, f"expected a message of peer {peer}, got one of peer {message.peer}"
        return message

    def receive(self) -> Message:
        """Return the next message.

        Raises:
            ConfigError: The coordinator refused this worker.
        """
        while True:
            message = self.transport.receive()
            assert message is not None
            if message.kind != "welcome":  # the answer to a hello that was sent twice
                return check_accepted(message)


def check_accepted(message: Message) -> Message:
    """Return a message of the coordinator.

    Raises:
        ConfigError: The coordinator refused this worker.
    """
    if message.kind == "refused":
        raise ConfigError(f"the master refused this worker: {message.fields['reason']}")
    return message
