"""Exported programs of torch (`torch.export.save`, .pt2) as modules that can be trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from clew.core.trust import foreign_origin, is_file_trusted, refusal
from clew.errors import ConfigError

_MODES = {torch.ops.aten.dropout.default: 2, torch.ops.aten.batch_norm.default: 5}
"""Operations that differ between training and evaluation, and the argument that selects the mode."""


class TrainableProgram(nn.Module):
    """An exported program that can be trained.

    Its dropout and batch normalisation follow `train()` and `eval()`, in whichever mode it was exported.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.graph = load_graph(path)
        self.train()

    def forward(self, *inputs: Tensor) -> Any:
        outputs = self.graph(*inputs)
        if isinstance(outputs, (list, tuple)):
            return outputs[0] if len(outputs) == 1 else {f"output_{n}": each for n, each in enumerate(outputs)}
        return outputs

    def train(self, mode: bool = True) -> Self:
        self.training, changed = mode, False
        for node in self.graph.graph.nodes:
            place = _MODES.get(node.target)
            if place is not None and bool(node.args[place]) != mode:
                node.args = (*node.args[:place], mode, *node.args[place + 1 :])
                changed = True
        if changed:
            self.graph.recompile()
        return self


def load_graph(path: Path) -> Any:
    """Load the graph of an exported program as a module.

    Raises:
        ConfigError: The file is missing, damaged, or only for batches of one size.
        RunError: The file came from elsewhere, and was not trusted.
    """
    if not path.is_file():
        raise ConfigError(f"no file {path}")
    origin = foreign_origin(path)
    if origin is not None and not is_file_trusted(path):
        raise refusal(path, origin, ["torch runs pickles when it loads a program"])
    try:
        program = torch.export.load(path)
    except Exception as error:  # torch raises many kinds of error for another file
        raise ConfigError(f"{path}: not an exported program of torch ({type(error).__name__})") from error
    names = set(program.graph_signature.user_inputs)
    first = next(node for node in program.graph.nodes if node.op == "placeholder" and node.name in names)
    size = first.meta["val"].shape[0]
    if isinstance(size, int):
        raise ConfigError(
            f"{path} was exported for batches of {size} only; export it with dynamic_shapes=({{0: Dim.DYNAMIC}},)"
        )
    return program.module()
