"""Writing a model in each of the formats it can be taken home in."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from clew.errors import ConfigError, RecipeError
from clew.inference.export import onnx_attention, onnx_convolution, onnx_recurrent, onnx_sums
from clew.inference.exported_model import ENTRY
from clew.inference.flat_forward import FlatForward, ModelInput
from clew.models.keras import KerasChain, KerasModule, load_keras, to_bytes, to_keras, without_array_warnings


@dataclass(frozen=True)
class ExportWork:
    """A model to be written: its forward pass on plain tensors, and tensors of real samples to try it on."""

    flat: FlatForward
    model: nn.Module
    inputs: tuple[ModelInput, ...]
    tensors: tuple[Tensor, ...]


_HYPOT = torch.ops.aten.hypot.default
FileWriter = Callable[[Path, str], None]
"""Writes a file with these facts in it."""


def write_torch_program(work: ExportWork) -> FileWriter:
    """A program that loads without clew: `torch.export.load(path).module()(*tensors)` gives outputs by name."""
    program = onnx_recurrent.restore_torch_operations(trace_forward(work))

    def write(path: Path, facts: str) -> None:
        with path.open("wb") as file:
            torch.export.save(program, file, extra_files={ENTRY: facts})

    return write


def write_onnx(work: ExportWork) -> FileWriter:
    """An ONNX file with names for inputs, outputs and axes."""
    try:
        import onnx
        import onnxscript  # noqa: F401  torch's exporter needs it
    except ImportError as error:
        raise ConfigError(f"ONNX files need the extra onnx (pip install 'clew[onnx]'): {error}") from error
    program, outputs = trace_forward(work), output_names(work)
    try:
        with _quiet():
            made = torch.onnx.export(
                program,
                dynamo=True,
                input_names=[each.name for each in work.inputs],
                output_names=list(outputs),
                custom_translation_table=_translations(program),
                verbose=False,
            )
    except Exception as error:  # torch.onnx raises many kinds for what it cannot say in ONNX
        raise RecipeError(f"the model cannot be said in ONNX: {first_line(_root(error))}; try --to torch") from error
    assert made is not None
    model = made.model_proto
    onnx_sums.check_sums(model)
    _name_axes(model, work.inputs)

    def write(path: Path, facts: str) -> None:
        onnx.helper.set_model_props(model, {"clew": facts})
        onnx.save(model, path)

    return write


def write_keras(work: ExportWork) -> FileWriter:
    """A Keras file, for a model that came from Keras.

    Raises:
        RecipeError: it did not, or is called with what a Keras file has no place for.
    """
    if not isinstance(work.model, (KerasModule, KerasChain)):
        raise RecipeError("only a model that came from Keras can go back; use --to onnx or --to torch")
    model = to_keras(work.model)
    if any(each.scale is not None for each in work.inputs):
        model = _scaled(model, work.inputs)
    content = to_bytes(model)

    def write(path: Path, facts: str) -> None:
        path.write_bytes(content)
        with zipfile.ZipFile(path, "a") as file:
            file.writestr(ENTRY, facts)

    return write


FORMATS: dict[str, tuple[str, Callable[[ExportWork], FileWriter]]] = {
    "onnx": (".onnx", write_onnx),
    "torch": (".pt2", write_torch_program),
    "keras": (".keras", write_keras),
}
"""Names, endings, and who writes them."""


def trace_forward(work: ExportWork) -> Any:
    """The forward pass as a graph in which batches may have any size.

    Raises:
        RecipeError: what it does depends on the values of its inputs, or cannot be said without Python.
    """
    shapes = tuple(dict.fromkeys(range(len(each.axes)), torch.export.Dim.DYNAMIC) for each in work.inputs)
    try:
        with _quiet(), onnx_recurrent.trace_as_one_operation(), torch.no_grad():
            return torch.export.export(work.flat, work.tensors, dynamic_shapes=(shapes,))
    except GuardOnDataDependentSymNode as error:
        raise RecipeError("the model cannot be exported: what it does depends on the values in its inputs") from error
    except Exception as error:  # torch.export raises many kinds for what it cannot follow
        if "Constraints violated" in str(error):
            raise RecipeError("the model cannot be exported: it is tied to one size of its inputs") from error
        raise RecipeError(
            f"the model cannot be exported, torch.export does not follow it: {first_line(error)}"
        ) from error


def output_names(work: ExportWork) -> tuple[str, ...]:
    """The names of what the model gives."""
    with torch.no_grad():
        return tuple(work.flat(*work.tensors))


def _translations(program: Any) -> dict[Any, Any]:
    """What torch.onnx does not say, or not well."""
    shaped = {**onnx_attention.onnx_translations(program), **onnx_convolution.onnx_translations(program)}
    return {**onnx_recurrent.onnx_translations(), **onnx_sums.onnx_translations(), **shaped, _HYPOT: _hypot()}


def _hypot() -> Any:
    """Which ONNX has not; and torch.onnx does not say it in other words."""
    from onnxscript import opset18 as op

    def hypot(x: Any, y: Any) -> Any:
        return op.Sqrt(op.Add(op.Mul(x, x), op.Mul(y, y)))

    return hypot


def _root(error: BaseException) -> BaseException:
    """What an error came from: torch's exporters wrap theirs in advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def first_line(error: BaseException) -> str:
    """What an error says, briefly."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def _name_axes(model: Any, inputs: Sequence[ModelInput]) -> None:
    """Give the axes of an ONNX graph our names for the tracer's."""
    names: dict[str, str] = {}
    for given, own in zip(model.graph.input, inputs, strict=True):
        for dim, name in zip(given.type.tensor_type.shape.dim, own.axes, strict=False):
            if dim.dim_param:
                names.setdefault(dim.dim_param, name)
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in names:
                dim.dim_param = names[dim.dim_param]


def _scaled(model: Any, inputs: Sequence[ModelInput]) -> Any:
    """The model behind a layer that scales."""
    library = load_keras()
    given = next(each for each in inputs if each.scale is not None)
    assert given.scale is not None
    if given.part != "column":
        raise RecipeError("a Keras file has no place for the scaling of padded sequences; use --to onnx or --to torch")
    factors = list(given.scale.factor)
    offsets = [-shift * factor for shift, factor in zip(given.scale.shift, factors, strict=True)]
    alone = len(factors) == 1
    layer = library.layers.Rescaling(factors[0] if alone else factors, offsets[0] if alone else offsets)
    with without_array_warnings():
        raw = library.Input(model.input_shape[1:])
        return library.Model(raw, model(layer(raw)), name=model.name)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch's exporters say to those who develop them."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
