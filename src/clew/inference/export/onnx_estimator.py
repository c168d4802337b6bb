"""ONNX files of estimators. Converters make the trees; the names and the scaling of the inputs are added here."""

from __future__ import annotations

import contextlib
import io
import warnings
from typing import Any

import numpy as np

from clew.errors import ClewError, ConfigError, RecipeError
from clew.inference.flat_forward import ModelInput
from clew.models.estimators import EstimatorModule

_OPSET = 15
"""Version of ONNX's plain operations, if the converter uses none. Older versions of onnxruntime read it."""


def estimator_to_onnx(model: EstimatorModule, inputs: tuple[ModelInput, ...], outputs: tuple[str, ...]) -> Any:
    """Return the ONNX model of a fitted estimator.

    Args:
        model: The estimator.
        inputs: The only input of the model: its features.
        outputs: The name of its output.

    Raises:
        RecipeError: The estimator cannot be expressed in ONNX.
        ConfigError: The converters are not installed.
    """
    if len(inputs) != 1 or len(outputs) != 1:
        raise RecipeError("an estimator is exported with one input and one output; the recipe's forward() has more")
    (item,) = inputs
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            converted = model.library.to_onnx(model.fitted, int(item.shape[-1]))
    except ClewError:
        raise
    except Exception as error:  # the converters raise many types for what they do not know
        text = (str(error).splitlines() or [""])[0][:200]
        raise RecipeError(f"{model.origin} cannot be expressed in ONNX: {type(error).__name__}: {text}") from error
    _set_opsets(converted)
    _add_prefix(converted.graph)
    _name_output(converted.graph, outputs[0])
    _connect_input(converted.graph, item)
    return converted


def _set_opsets(model: Any) -> None:
    """Name each set of operations once, and the plain ones in any case."""
    versions = {each.domain: each.version for each in model.opset_import}
    versions[""] = max(versions.get("", 0), _OPSET)
    del model.opset_import[:]
    for domain, version in versions.items():
        entry = model.opset_import.add()
        entry.domain, entry.version = domain, version


def _add_prefix(graph: Any) -> None:
    """Rename the values of the converter, which may use the names of inputs and outputs for others."""

    def renamed(name: str) -> str:
        return f"trees_{name}" if name else ""

    for node in graph.node:
        node.input[:] = map(renamed, node.input)
        node.output[:] = map(renamed, node.output)
    for value in (*graph.input, *graph.output, *graph.initializer):
        value.name = renamed(value.name)
    del graph.value_info[:]


def _name_output(graph: Any, name: str) -> None:
    """Keep the last output, which holds probabilities or values, under the name of the recipe's output."""
    before = graph.output[-1].name
    for _ in range(len(graph.output) - 1):
        del graph.output[0]
    for node in graph.node:
        node.output[:] = [name if each == before else each for each in node.output]
        node.input[:] = [name if each == before else each for each in node.input]
    graph.output[0].name = name
    graph.output[0].type.tensor_type.shape.dim[0].dim_param = "events"


def _connect_input(graph: Any, item: ModelInput) -> None:
    """Give the input its name and type, and put the conversion to float32 and the scaling before the trees."""
    try:
        from onnx import TensorProto, helper, numpy_helper
    except ImportError as error:
        raise ConfigError(f"ONNX files need the extra onnx (pip install 'clew[onnx]'): {error}") from error
    before, scaled = graph.input[0].name, f"{item.name}_scaled"
    for node in graph.node:
        node.input[:] = [scaled if each == before else each for each in node.input]
    number = getattr(
        TensorProto, {"bool": "BOOL", "float32": "FLOAT", "float64": "DOUBLE"}.get(item.type, item.type.upper())
    )
    del graph.input[:]
    graph.input.append(helper.make_tensor_value_info(item.name, number, ["events", *item.shape[1:]]))
    nodes = [helper.make_node("Cast", [item.name], [f"{item.name}_double"], to=TensorProto.DOUBLE)]
    last = f"{item.name}_double"
    if item.scale is not None:
        for operation, values in (("Sub", item.scale.shift), ("Mul", item.scale.factor)):
            constant, result = f"{item.name}_{operation}_by", f"{item.name}_{operation}"
            graph.initializer.append(numpy_helper.from_array(np.array(values, dtype=np.float64), constant))
            nodes.append(helper.make_node(operation, [last, constant], [result]))
            last = result
    nodes.append(helper.make_node("Cast", [last], [scaled], to=TensorProto.FLOAT))
    for node in reversed(nodes):
        graph.node.insert(0, node)
