"""Writes a model in each of the formats for export."""

from __future__ import annotations

import contextlib
import io
import json
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
from clew.inference.export import (
    hls4ml_project,
    onnx_attention,
    onnx_convolution,
    onnx_estimator,
    onnx_recurrent,
    onnx_sums,
)
from clew.inference.export.hls4ml_project import DEFAULT_PRECISION, Precision
from clew.inference.exported_model import ENTRY, HLS4ML_SHAPE
from clew.inference.flat_forward import FlatForward, ModelInput
from clew.inference.saved_model import SAVED_MODEL_ENTRY, check_tensorflow, save_keras_content
from clew.models.estimators import EstimatorModule
from clew.models.keras import KerasChain, KerasModule, load_keras, to_bytes, to_keras, without_array_warnings


@dataclass(frozen=True)
class ExportWork:
    """A model to write: its forward pass on plain tensors, and tensors of real samples to test it with."""

    flat: FlatForward
    model: nn.Module
    inputs: tuple[ModelInput, ...]
    tensors: tuple[Tensor, ...]


_HYPOT = torch.ops.aten.hypot.default
FileWriter = Callable[[Path, str], None]
"""Writes a file that contains these facts."""


def write_torch_program(work: ExportWork) -> FileWriter:
    """Write a program that loads without clew: `torch.export.load(path).module()(*tensors)` returns outputs by name."""
    if isinstance(work.model, EstimatorModule):
        raise RecipeError(f"{work.model.origin} is not a network: it cannot be a torch program; use --to onnx")
    program = onnx_recurrent.restore_torch_operations(trace_forward(work))

    def write(path: Path, facts: str) -> None:
        with path.open("wb") as file:
            torch.export.save(program, file, extra_files={ENTRY: facts})

    return write


def write_onnx(work: ExportWork) -> FileWriter:
    """Write an ONNX file with names for inputs, outputs and axes."""
    try:
        import onnx
        import onnxscript  # noqa: F401  torch's exporter needs it
    except ImportError as error:
        raise ConfigError(f"ONNX files need the extra onnx (pip install 'clew[onnx]'): {error}") from error
    model = _estimator_proto(work) if isinstance(work.model, EstimatorModule) else _network_proto(work)

    def write(path: Path, facts: str) -> None:
        onnx.helper.set_model_props(model, {"clew": facts})
        onnx.save(model, path)

    return write


def _estimator_proto(work: ExportWork) -> Any:
    assert isinstance(work.model, EstimatorModule)
    return onnx_estimator.estimator_to_onnx(work.model, work.inputs, output_names(work))


def _network_proto(work: ExportWork) -> Any:
    """Return a network as an ONNX model.

    Raises:
        RecipeError: ONNX does not have one of its operations.
    """
    program, outputs = trace_forward(work), output_names(work)
    try:
        with _without_exporter_messages():
            exported = torch.onnx.export(
                program,
                dynamo=True,
                input_names=[each.name for each in work.inputs],
                output_names=list(outputs),
                custom_translation_table=_translations(program),
                verbose=False,
            )
    except Exception as error:  # torch.onnx raises many types for operations that ONNX does not have
        raise RecipeError(
            f"the model cannot be expressed in ONNX: {first_line(_root_cause(error))}; try --to torch"
        ) from error
    assert exported is not None
    model = exported.model_proto
    onnx_sums.check_sums(model)
    _name_axes(model, work.inputs)
    _remove_source_lines(model.graph)
    for function in model.functions:
        _remove_source_lines(function)
    return model


def write_keras(work: ExportWork) -> FileWriter:
    """Write a Keras file, for a model that came from Keras.

    Raises:
        RecipeError: It did not come from Keras, or has a scaling that a Keras file cannot hold.
    """
    content = to_bytes(_keras_model(work, "Keras"))

    def write(path: Path, facts: str) -> None:
        path.write_bytes(content)
        with zipfile.ZipFile(path, "a") as file:
            file.writestr(ENTRY, facts)

    return write


def write_saved_model(work: ExportWork) -> FileWriter:
    """Write a SavedModel of TensorFlow, a folder, for a model that came from Keras.

    Raises:
        ConfigError: TensorFlow is not installed.
        RecipeError: The model did not come from Keras, or cannot be written.
    """
    model = _keras_model(work, "a SavedModel")
    check_tensorflow()
    if len(model.inputs) != len(work.inputs):
        raise RecipeError("a SavedModel cannot take the mask of padded sequences; use --to onnx or --to torch")
    content = to_bytes(model)

    def write(path: Path, facts: str) -> None:
        if not path.exists():
            save_keras_content(content, path)
        facts_path = path / SAVED_MODEL_ENTRY
        facts_path.parent.mkdir(exist_ok=True)
        facts_path.write_text(facts)

    return write


def write_hls4ml(work: ExportWork, precision: Precision = DEFAULT_PRECISION) -> FileWriter:
    """Write a project of hls4ml, a folder, for a dense network. Its emulation is compiled in it.

    Raises:
        ConfigError: hls4ml or g++ is not installed.
        RecipeError: The model is not a chain of layers that hls4ml supports, or cannot be written.
    """
    hls4ml_project.check_tools()
    network = hls4ml_project.dense_network(work.model, work.inputs, precision)
    if len(output_names(work)) != 1:
        raise RecipeError(f"hls4ml projects have one output, this model has {', '.join(output_names(work))}")

    def write(path: Path, facts: str) -> None:
        if not path.exists():
            hls4ml_project.write_project(network, precision, path)
            (path / HLS4ML_SHAPE).write_text(json.dumps({"inputs": network.input_size, "outputs": network.output_size}))
        (path / ENTRY).write_text(facts)

    return write


def _keras_model(work: ExportWork, kind: str) -> Any:
    """Return the Keras model, with a layer for the scaling of its inputs."""
    if not isinstance(work.model, (KerasModule, KerasChain)):
        raise RecipeError(f"only a model that came from Keras can be exported to {kind}; use --to onnx or --to torch")
    model = to_keras(work.model)
    if any(each.scale is not None for each in work.inputs):
        model = _with_scaling_layer(model, work.inputs)
    return model


FORMATS: dict[str, tuple[str, Callable[[ExportWork], FileWriter]]] = {
    "onnx": (".onnx", write_onnx),
    "torch": (".pt2", write_torch_program),
    "keras": (".keras", write_keras),
    "savedmodel": (".savedmodel", write_saved_model),
    "hls4ml": (".hls4ml", write_hls4ml),
}
"""File ending and writer of each format, by name."""


def trace_forward(work: ExportWork) -> Any:
    """Return the forward pass as a graph in which batches may have any size.

    Raises:
        RecipeError: It depends on the values of its inputs, or on Python code that cannot be traced.
    """
    shapes = tuple(dict.fromkeys(range(len(each.axes)), torch.export.Dim.DYNAMIC) for each in work.inputs)
    try:
        with _without_exporter_messages(), onnx_recurrent.trace_as_one_operation(), torch.no_grad():
            return torch.export.export(work.flat, work.tensors, dynamic_shapes=(shapes,))
    except GuardOnDataDependentSymNode as error:
        raise RecipeError("the model cannot be exported: its operations depend on the values of its inputs") from error
    except Exception as error:  # torch.export raises many types
        if "Constraints violated" in str(error):
            raise RecipeError("the model cannot be exported: it works with one size of its inputs only") from error
        raise RecipeError(f"the model cannot be exported, torch.export cannot trace it: {first_line(error)}") from error


def output_names(work: ExportWork) -> tuple[str, ...]:
    """The names of the outputs."""
    with torch.no_grad():
        return tuple(work.flat(*work.tensors))


def _translations(program: Any) -> dict[Any, Any]:
    """Translations of operations that torch.onnx does not support, or not well."""
    shaped = {**onnx_attention.onnx_translations(program), **onnx_convolution.onnx_translations(program)}
    return {**onnx_recurrent.onnx_translations(), **onnx_sums.onnx_translations(), **shaped, _HYPOT: _hypot()}


def _hypot() -> Any:
    """Neither ONNX nor torch.onnx has hypot."""
    from onnxscript import opset18 as op

    def hypot(x: Any, y: Any) -> Any:
        return op.Sqrt(op.Add(op.Mul(x, x), op.Mul(y, y)))

    return hypot


def _root_cause(error: BaseException) -> BaseException:
    """The first cause of an error; torch's exporters wrap it."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def first_line(error: BaseException) -> str:
    """The type and the first line of an error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def _remove_source_lines(graph: Any) -> None:
    """Remove what torch notes about each node: lines of source code, and their paths on this machine."""
    for node in graph.node:
        del node.metadata_props[:]
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _remove_source_lines(attribute.g)


def _name_axes(model: Any, inputs: Sequence[ModelInput]) -> None:
    """Replace the names that the tracer gave to axes by those of the inputs."""
    names: dict[str, str] = {}
    for tensor, described in zip(model.graph.input, inputs, strict=True):
        for dim, name in zip(tensor.type.tensor_type.shape.dim, described.axes, strict=False):
            if dim.dim_param:
                names.setdefault(dim.dim_param, name)
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in names:
                dim.dim_param = names[dim.dim_param]


def _with_scaling_layer(model: Any, inputs: Sequence[ModelInput]) -> Any:
    """The model after a layer that scales its input."""
    library = load_keras()
    scaled_input = next(each for each in inputs if each.scale is not None)
    assert scaled_input.scale is not None
    if scaled_input.part != "column":
        raise RecipeError("a Keras file cannot hold the scaling of padded sequences; use --to onnx or --to torch")
    factors = list(scaled_input.scale.factor)
    offsets = [-shift * factor for shift, factor in zip(scaled_input.scale.shift, factors, strict=True)]
    alone = len(factors) == 1
    layer = library.layers.Rescaling(factors[0] if alone else factors, offsets[0] if alone else offsets)
    with without_array_warnings():
        raw = library.Input(model.input_shape[1:])
        return library.Model(raw, model(layer(raw)), name=model.name)


@contextlib.contextmanager
def _without_exporter_messages() -> Iterator[None]:
    """Hide messages of torch's exporters that are meant for their developers."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
