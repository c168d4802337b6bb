"""A C++ program that runs an exported ONNX model with ONNX Runtime."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from clew.core.files import write_text
from clew.errors import ConfigError
from clew.inference.flat_forward import ExportFacts, ModelInput

_TYPES = {
    "float32": "float",
    "float64": "double",
    "int64": "std::int64_t",
    "int32": "std::int32_t",
    "bool": "bool",
}
"""Types of C++ by types of inputs."""


def example_path(model: Path) -> Path:
    """Return the file of the example of a model."""
    return model.with_suffix(".cpp")


def write_example(model: Path, facts: ExportFacts, columns: Mapping[str, Sequence[str]]) -> Path:
    """Write the example next to a model. An existing file is replaced.

    Args:
        model: The ONNX file.
        facts: Its description.
        columns: The columns of events that are side by side in an input, by input column, where they are known.

    Returns:
        The file written.

    Raises:
        ConfigError: An input has a type without a counterpart in C++.
    """
    path = example_path(model)
    write_text(path, example_text(model.name, facts, columns))
    return path


def example_text(file: str, facts: ExportFacts, columns: Mapping[str, Sequence[str]]) -> str:
    """Return the text of the program; see `write_example`."""
    template = Path(__file__).with_name("model.cpp.template").read_text(encoding="utf-8")
    variables = {item.name: re.sub(r"\W", "_", f"input_{item.name}") for item in facts.inputs}
    texts = {
        "inputs": "\n".join(_comment(item, columns.get(item.column, ())) for item in facts.inputs),
        "reading": "\n".join(f"  auto {variables[item.name]} = {_read(item)};" for item in facts.inputs),
        "tensors": "\n".join(f"  inputs.push_back({name}.tensor());" for name in variables.values()),
        "input_names": ", ".join(f'"{item.name}"' for item in facts.inputs),
        "output_names": ", ".join(f'"{name}"' for name in facts.outputs),
        "output_count": str(len(facts.outputs)),
        "file": file,
        "stem": re.sub(r"[^\w.-]", "_", Path(file).stem),
    }
    for name, text in texts.items():
        template = template.replace(f"@{name}@", text)
    return template


def _comment(item: ModelInput, columns: Sequence[str]) -> str:
    text = f"{item.name}: {item.type}, axes ({', '.join(map(str, item.shape))})"
    if columns:
        text += f", the columns {', '.join(columns)}"
    if item.scale is not None:
        text += "; not scaled, the model does it"
    return textwrap.fill(text, 116, initial_indent="// ", subsequent_indent="//   ")


def _read(item: ModelInput) -> str:
    if item.type not in _TYPES:
        raise ConfigError(f"input '{item.name}' is {item.type}, for which there is no C++ example")
    lengths = ", ".join(str(length) if isinstance(length, int) else "-1" for length in item.shape)
    return f'read_input<{_TYPES[item.type]}>(std::cin, "{item.name}", {{{lengths}}})'
