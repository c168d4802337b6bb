"""The stage of a rank of a pipeline: it gets tensors from the rank before it, and sends some to the rank after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from clew.errors import ConfigError, RecipeError
from clew.training.strategies.process_group import ProcessGroupStrategy
from clew.training.strategies.stage_graphs import Division

_TYPES = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
)
"""Types of tensors that stages send each other; the same order on all ranks."""
_LAYOUT_SIZE = 18
_PREFIX = "input_"


class ModelStage(nn.Module):
    """The stage of this rank.

    When it is called outside a training step, it passes a batch through all stages and gives the output of the last
    stage to every rank, so that each rank can evaluate it.
    """

    def __init__(
        self, stage: nn.Module, strategy: ProcessGroupStrategy, training: Division, evaluation: Division
    ) -> None:
        """Make the functions of the stage.

        Args:
            stage: The model, with the parameters of this stage only.
            strategy: The ranks.
            training: How the model is divided in training mode.
            evaluation: How it is divided in evaluation mode.
        """
        super().__init__()
        self.stage = stage
        self._strategy = strategy
        self._divisions = {True: training, False: evaluation}
        self._functions = {mode: part.stage_module(stage, strategy.rank) for mode, part in self._divisions.items()}
        self._template: Any = None
        """What the last stage returned, with places instead of tensors."""

    def forward(self, *inputs: Any, **named: Any) -> Any:
        rank, ranks, device = self._strategy.rank, self._strategy.ranks, self._strategy.device
        _, out = self._pass(self.named_inputs(inputs, named), training=self.training)
        last = rank == ranks - 1
        template = self._strategy.gather(self._template if last else None)[-1]
        layouts = self._strategy.gather([_layout(tensor).tolist() for tensor in out] if last else [])[-1]
        results = [tensor.contiguous() for tensor in out] if last else [_empty(layout, device) for layout in layouts]
        for tensor in results:
            dist.broadcast(tensor, ranks - 1)
        return _map(template, _Place, lambda place: results[place.number])

    def named_inputs(self, inputs: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call of the model by name.

        Raises:
            RecipeError: The model does not accept these arguments.
        """
        names = [node.target for node in self._divisions[True].graph.nodes if node.op == "placeholder"]
        if len(inputs) > len(names) or named.keys() - names[len(inputs) :]:
            raise RecipeError(f"the model takes {', '.join(names)}; forward() calls it with other arguments")
        return dict(zip(names, inputs, strict=False)) | dict(named)

    def own_inputs(self, inputs: Mapping[str, Any], *, training: bool = True) -> dict[str, Any]:
        """Return the arguments of the model that this stage uses."""
        names = self._divisions[training].inputs(self._strategy.rank)
        return {name: inputs[name] for name in names if name in inputs}

    def assemble(self, tensors: Sequence[Tensor]) -> Any:
        """Return the tensors of the last stage as the model returned them."""
        return _map(self._template, _Place, lambda place: tensors[place.number])

    def shapes(self, inputs: Mapping[str, Tensor]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Return what this stage receives and computes for these inputs of the model, without any training."""
        was_training, devices = self.training, [self._strategy.device] if self._strategy.device.type != "cpu" else []
        self.eval()
        with torch.random.fork_rng(devices, device_type=self._strategy.device.type), torch.enable_grad():
            received, out = self._pass(inputs, training=True)
        self.train(was_training)
        return received, tuple(tensor.detach().requires_grad_(tensor.requires_grad) for tensor in out)

    def run(self, received: Sequence[Tensor], inputs: Mapping[str, Tensor], *, training: bool) -> tuple[Tensor, ...]:
        """Compute this stage.

        Args:
            received: The tensors of the stage before.
            inputs: The inputs of the model that this stage uses.
            training: Which of the two functions to use. Modules follow their own mode.
        """
        returned, tensors = self._functions[training](*received, **inputs), []

        def place(tensor: Tensor) -> _Place:
            tensors.append(tensor)
            return _Place(len(tensors) - 1)

        if self._strategy.rank == self._strategy.ranks - 1:
            self._template = _map(returned, Tensor, place)
            return tuple(tensors)
        for value, node in zip(returned, self._divisions[training].received(self._strategy.rank + 1), strict=True):
            if not isinstance(value, Tensor):
                raise ConfigError(
                    f"train.split_points: '{node.name}' would be sent to the next stage, and is a "
                    f"{type(value).__name__}; only tensors can be sent, so choose other split points"
                )
        return tuple(value.contiguous() for value in returned)

    def _pass(self, inputs: Mapping[str, Tensor], *, training: bool) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Return what this stage received and computed, and send the latter to the next stage."""
        rank, ranks, division = self._strategy.rank, self._strategy.ranks, self._divisions[training]
        received = tuple(_receive(rank - 1, self._strategy.device) for _ in division.received(rank))
        out = self.run(received, self.own_inputs(inputs, training=training), training=training)
        for tensor in out if rank < ranks - 1 else ():
            _send(tensor, rank + 1)
        return received, out


class TrainingStage(nn.Module):
    """A stage as the schedule of torch calls it. Names of inputs have a prefix: the schedule has arguments too."""

    def __init__(self, stage: ModelStage) -> None:
        super().__init__()
        self._stage = stage

    @staticmethod
    def prefixed(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return inputs with the names under which the schedule passes them on."""
        return {f"{_PREFIX}{name}": tensor for name, tensor in inputs.items()}

    def forward(self, *received: Tensor, **inputs: Tensor) -> tuple[Tensor, ...]:
        named = {name.removeprefix(_PREFIX): tensor for name, tensor in inputs.items()}
        return self._stage.run(received, named, training=True)


@dataclass(frozen=True)
class _Place:
    """Takes the place of a tensor in a value that is sent."""

    number: int


def _map(value: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """Return a value of tuples, lists and dictionaries with all objects of a kind replaced."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _map(item, kind, change) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_map(item, kind, change) for item in value))
    if isinstance(value, tuple | list):
        return type(value)(_map(item, kind, change) for item in value)
    return value


def _send(tensor: Tensor, to: int) -> None:
    dist.send(_layout(tensor), to)
    dist.send(tensor.detach(), to)


def _receive(source: int, device: torch.device) -> Tensor:
    layout = torch.zeros(_LAYOUT_SIZE, dtype=torch.int64)
    dist.recv(layout, source)
    tensor = _empty(layout.tolist(), device)
    dist.recv(tensor, source)
    return tensor.requires_grad_(bool(layout[2]))


def _layout(tensor: Tensor) -> Tensor:
    """Return type, number of dimensions, whether it has a gradient, and shape of a tensor as numbers."""
    values = [_TYPES.index(tensor.dtype), tensor.dim(), int(tensor.requires_grad), *tensor.shape]
    return torch.tensor(values + [0] * (_LAYOUT_SIZE - len(values)))


def _empty(layout: Sequence[int], device: torch.device) -> Tensor:
    dtype, dimensions, _, *shape = layout
    return torch.empty(shape[:dimensions], dtype=_TYPES[dtype], device=device)
