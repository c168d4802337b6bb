"""Exported models: read back and asked about samples, as a run's model is."""

from __future__ import annotations

import functools
import json
import zipfile
from abc import abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from clew.core.config import Document, validate
from clew.data.dataset.batch import Batch
from clew.data.transforms import Transform
from clew.errors import ConfigError, DataError
from clew.inference.flat_forward import ExportFacts
from clew.inference.model_runner import ModelRunner
from clew.inference.parallel_inference import InferenceTask
from clew.inference.sample_sources import RawEvents
from clew.recipe import Recipe, find
from clew.runs import Run

ENTRY = "clew.json"
"""Where a file keeps its facts."""


class ExportedModel(nn.Module):
    """An exported model: a batch of samples in, outputs by name. On the processor."""

    ending: ClassVar[str]

    def __init__(self, path: Path) -> None:
        super().__init__()
        try:
            self.facts = ExportFacts.model_validate_json(self._open(path))
        except (ValidationError, KeyError) as error:
            raise ConfigError(f"{path}: not a file that `clew export` wrote ({type(error).__name__})") from error

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        for each in self.facts.inputs:
            if each.column not in batch.columns:
                raise DataError(f"no column '{each.column}', which the exported model needs")
        return self._asked([each.of(batch).contiguous() for each in self.facts.inputs])

    @abstractmethod
    def _open(self, path: Path) -> str:
        """Get ready, and return the facts."""

    @abstractmethod
    def _asked(self, inputs: list[Tensor]) -> dict[str, Tensor]:
        """What the model says."""


class OnnxModel(ExportedModel):
    """Computed by onnxruntime, with as many threads as torch has; with one where layers are recurrent, because
    onnxruntime wakes the others in every step of a sequence, which takes longer than it saves."""

    ending = ".onnx"

    def _open(self, path: Path) -> str:
        try:
            import onnxruntime
        except ImportError as error:
            raise ConfigError(f"ONNX files need the extra onnx (pip install 'clew[onnx]'): {error}") from error
        self._session = self._begun(onnxruntime, path, torch.get_num_threads())
        told = str(self._session.get_modelmeta().custom_metadata_map["clew"])
        if json.loads(told).get("recurrent"):
            self._session = self._begun(onnxruntime, path, 1)
        return told

    def _begun(self, library: Any, path: Path, threads: int) -> Any:
        options = library.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # others may need the cores
        try:
            return library.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's own kinds
            raise ConfigError(f"{path}: onnxruntime cannot read it ({str(error).splitlines()[0]})") from error

    def _asked(self, inputs: list[Tensor]) -> dict[str, Tensor]:
        given = {each.name: tensor.numpy() for each, tensor in zip(self.facts.inputs, inputs, strict=True)}
        found = self._session.run(list(self.facts.outputs), given)
        return {name: torch.from_numpy(value) for name, value in zip(self.facts.outputs, found, strict=True)}


class TorchProgramModel(ExportedModel):
    """A program of `torch.export`."""

    ending = ".pt2"
    _graph: Any

    def _open(self, path: Path) -> str:
        more: dict[str, Any] = {ENTRY: ""}
        try:
            program = torch.export.load(path, extra_files=more)
        except Exception as error:  # torch raises many kinds for a file that is not one
            raise ConfigError(f"{path}: not an exported program of torch ({type(error).__name__})") from error
        object.__setattr__(self, "_graph", program.module())  # it cannot be told to be in eval mode, and is
        return more[ENTRY] if isinstance(more[ENTRY], str) else bytes(more[ENTRY]).decode()

    def _asked(self, inputs: list[Tensor]) -> dict[str, Tensor]:
        found: dict[str, Tensor] = self._graph(*inputs)
        return found


class KerasFileModel(ExportedModel):
    """A Keras file."""

    ending = ".keras"

    def _open(self, path: Path) -> str:
        from clew.models import keras

        self._network = keras.to_module(keras.read_keras(path), penalties="ignore").eval()
        with zipfile.ZipFile(path) as file:
            return file.read(ENTRY).decode()

    def _asked(self, inputs: list[Tensor]) -> dict[str, Tensor]:
        found = self._network(*inputs)
        return dict(found) if isinstance(found, dict) else {"output": found}


MODEL_CLASSES: dict[str, type[ExportedModel]] = {
    kind.ending: kind for kind in (OnnxModel, TorchProgramModel, KerasFileModel)
}
"""By the ending of the file."""


def is_exported_model(given: Any) -> bool:
    """Whether this names a file that may be an exported model."""
    return isinstance(given, (str, Path)) and Path(given).suffix in MODEL_CLASSES and not Path(given).is_dir()


def load(path: Path) -> ExportedModel:
    """An exported model.

    Raises:
        ConfigError: there is none, or it cannot be read.
    """
    if not path.is_file():
        raise ConfigError(f"no file {path}")
    return MODEL_CLASSES[path.suffix](path)


@dataclass
class ExportedModelRunner(ModelRunner):
    """An exported model asked about samples; `recipe` makes objects of its outputs."""

    def outputs(self, batch: Batch) -> Any:
        return self.model(batch)


@dataclass(frozen=True)
class ExportedModelTask(InferenceTask):
    """What is done with samples by an exported model."""

    file: Path = field(default=Path())

    def engine(self, device: torch.device) -> ModelRunner:
        return ExportedModelRunner(self.recipe, load(self.file), torch.device("cpu"), self.size)


@dataclass(frozen=True)
class ExportedModelEvents(RawEvents):
    """Raw events that go through the recipe and the transforms an exported model names."""

    saved: tuple[dict[str, Any], ...] = ()

    def _transforms(self) -> list[Transform]:
        return [
            type(each).model_validate(facts) for each, facts in zip(self.recipe.transforms(), self.saved, strict=True)
        ]


def recipe_from_facts(facts: ExportFacts) -> Recipe:
    """The recipe an exported model was trained by, with its settings.

    Raises:
        RecipeError: it cannot be found here.
    """
    kind = find(facts.recipe)
    return kind(validate(kind.Config, Document(facts.settings, source="the exported model")))


@functools.cache
def read_facts(path: Path) -> ExportFacts:
    """What an exported file says of itself."""
    return load(path).facts


def meeting_run(path: Path) -> Run:
    """Ranks that share the work meet beside the file, as those of a run do beside its folder."""
    return Run(path.absolute())


def facts_to_json(facts: ExportFacts) -> str:
    """As it stands in a file."""
    return json.dumps(facts.model_dump(mode="json"))
