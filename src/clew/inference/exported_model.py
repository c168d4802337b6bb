"""Reads exported models, and runs them on samples like the model of a run."""

from __future__ import annotations

import ctypes
import functools
import json
import stat
import zipfile
from abc import abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from clew.core.config import Document, validate
from clew.core.format_version import check_format_version
from clew.core.trust import is_file_trusted, refusal
from clew.data.dataset.batch import Batch
from clew.data.readers.items import ItemGroups
from clew.data.table import Table
from clew.data.transforms import Transform
from clew.errors import ClewError, ConfigError, DataError
from clew.inference.flat_forward import EXPORT_FORMAT, ExportFacts
from clew.inference.model_runner import Mode, ModelRunner, SamplePortion
from clew.inference.parallel_inference import InferenceTask
from clew.inference.sample_sources import RawEvents
from clew.inference.saved_model import SAVED_MODEL_ENTRY, load_saved_model
from clew.recipe import Recipe, find
from clew.runs import Run
from clew.runs.run_trust import code_references
from clew.training.validation import mismatch_error

_LOADED_MODELS = 8
_OTHER = "another machine or user"
_trusted_files: set[tuple[Path, int, int, int]] = set()
"""Path, times and size of files that were trusted when they were read."""
ENTRY = "clew.json"
"""Name of the entry of a file that holds its description."""
HLS4ML_FUNCTION = "network"
"""Name of the top function of hls4ml projects."""
HLS4ML_SHAPE = "emulation.json"
"""Name of the file of an hls4ml project that holds the lengths of its input and output."""


class ExportedModel(nn.Module):
    """An exported model. It takes a batch of samples and returns outputs by name, on the CPU."""

    ending: ClassVar[str]
    holds_code: ClassVar[bool] = False
    """Whether loading the file executes what its author wrote."""
    is_folder: ClassVar[bool] = False
    advice: ClassVar[str] = ""
    """What to do if it differs from the original by more than the tolerance."""
    uses_memory: ClassVar[bool] = False
    """Whether it may compute from the memory of the samples: it neither changes it, nor rounds by its alignment."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        try:
            facts = self._open(path)
            self.facts = ExportFacts.model_validate_json(facts)
        except (ValidationError, KeyError, FileNotFoundError) as error:
            if isinstance(error, ValidationError):
                check_format_version(path, _format(facts), EXPORT_FORMAT, ConfigError)
            raise ConfigError(f"{path}: not a file that `clew export` wrote ({type(error).__name__})") from error

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        for item in self.facts.inputs:
            if item.column not in batch.columns:
                raise DataError(f"no column '{item.column}', which the exported model needs")
        return self._run([item.of(batch).contiguous() for item in self.facts.inputs])

    @abstractmethod
    def _open(self, path: Path) -> str:
        """Open the file, and return its description as JSON."""

    @abstractmethod
    def _run(self, inputs: list[Tensor]) -> dict[str, Tensor]:
        """Return the outputs by name."""


def _format(facts: str) -> object:
    """Return the version that the description of an exported model names; None if it names none."""
    try:
        data = json.loads(facts)
    except ValueError:
        return None
    return data.get("format") if isinstance(data, dict) else None


class OnnxModel(ExportedModel):
    """An ONNX file, computed by onnxruntime with as many threads as torch uses.

    Recurrent layers use one thread: onnxruntime wakes the others in every step of a sequence, which takes longer than
    it saves.
    """

    ending = ".onnx"
    uses_memory = True

    def _open(self, path: Path) -> str:
        try:
            import onnxruntime
        except ImportError as error:
            raise ConfigError(f"ONNX files need the extra onnx (pip install 'clew[onnx]'): {error}") from error
        self._session = self._open_session(onnxruntime, path, torch.get_num_threads())
        facts = str(self._session.get_modelmeta().custom_metadata_map["clew"])
        if json.loads(facts).get("recurrent"):
            self._session = self._open_session(onnxruntime, path, 1)
        return facts

    def _open_session(self, library: Any, path: Path, threads: int) -> Any:
        options = library.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # others may need the cores
        try:
            return library.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime has its own kinds of error
            raise ConfigError(f"{path}: onnxruntime cannot read it ({str(error).splitlines()[0]})") from error

    def _run(self, inputs: list[Tensor]) -> dict[str, Tensor]:
        arrays = {item.name: tensor.numpy() for item, tensor in zip(self.facts.inputs, inputs, strict=True)}
        outputs = self._session.run(list(self.facts.outputs), arrays)
        return {name: torch.from_numpy(value) for name, value in zip(self.facts.outputs, outputs, strict=True)}


class TorchProgramModel(ExportedModel):
    """A program that `torch.export` wrote."""

    ending = ".pt2"
    holds_code = True
    _graph: Any

    def _open(self, path: Path) -> str:
        extra: dict[str, Any] = {ENTRY: ""}
        try:
            program = torch.export.load(path, extra_files=extra)
        except Exception as error:  # torch raises many kinds of error for another file
            raise ConfigError(f"{path}: not an exported program of torch ({type(error).__name__})") from error
        object.__setattr__(self, "_graph", program.module())  # not a submodule: eval() would fail on it
        return extra[ENTRY] if isinstance(extra[ENTRY], str) else bytes(extra[ENTRY]).decode()

    def _run(self, inputs: list[Tensor]) -> dict[str, Tensor]:
        outputs: dict[str, Tensor] = self._graph(*inputs)
        return outputs


class KerasFileModel(ExportedModel):
    """A Keras file."""

    ending = ".keras"

    def _open(self, path: Path) -> str:
        from clew.models import keras

        self._network = keras.to_module(keras.read_keras(path), penalties="ignore").eval()
        with zipfile.ZipFile(path) as file:
            return file.read(ENTRY).decode()

    def _run(self, inputs: list[Tensor]) -> dict[str, Tensor]:
        outputs = self._network(*inputs)
        return dict(outputs) if isinstance(outputs, dict) else {"output": outputs}


class SavedModelFolder(ExportedModel):
    """A SavedModel of TensorFlow, computed by TensorFlow."""

    ending = ".savedmodel"
    holds_code = True
    is_folder = True

    def _open(self, path: Path) -> str:
        self._loaded = load_saved_model(path)
        return (path / SAVED_MODEL_ENTRY).read_text()

    def _run(self, inputs: list[Tensor]) -> dict[str, Tensor]:
        arrays: list[Any] = [tensor.numpy() for tensor in inputs]
        outputs = self._loaded.serve(arrays[0] if len(arrays) == 1 else arrays)
        named = outputs if isinstance(outputs, (list, tuple)) else [outputs]
        values = outputs.values() if isinstance(outputs, dict) else named
        return {name: torch.from_numpy(value.numpy()) for name, value in zip(self.facts.outputs, values, strict=True)}


class Hls4mlProject(ExportedModel):
    """A project of hls4ml, computed event by event by the emulation that was compiled when it was exported."""

    ending = ".hls4ml"
    holds_code = True
    is_folder = True
    advice = (
        "use wider numbers (--precision 'ap_fixed<48,16>'), or accept it with --tolerance "
        "(sigmoid, tanh and ELU come from tables, which wider numbers do not change)"
    )

    def _open(self, path: Path) -> str:
        facts = (path / ENTRY).read_text()
        shape = json.loads((path / HLS4ML_SHAPE).read_text())
        self._lengths = int(shape["inputs"]), int(shape["outputs"])
        try:
            library = ctypes.CDLL(str(next((path / "firmware").glob("*.so")).absolute()))
            self._function = library[f"{HLS4ML_FUNCTION}_float"]
        except (StopIteration, OSError, AttributeError) as error:
            raise ConfigError(
                f"{path}: no emulation for this machine; `bash build_lib.sh` there compiles it"
            ) from error
        return facts

    def _run(self, inputs: list[Tensor]) -> dict[str, Tensor]:
        events = inputs[0].flatten(1).float().contiguous()
        if events.shape[1] != self._lengths[0]:  # the function would read other memory
            raise DataError(f"{events.shape[1]} numbers per event, but the exported model needs {self._lengths[0]}")
        outputs = torch.empty(len(events), self._lengths[1])
        for event, output in zip(events, outputs, strict=True):
            self._function(ctypes.c_void_p(event.data_ptr()), ctypes.c_void_p(output.data_ptr()))
        return {self.facts.outputs[0]: outputs}


MODEL_CLASSES: dict[str, type[ExportedModel]] = {
    kind.ending: kind for kind in (OnnxModel, TorchProgramModel, KerasFileModel, SavedModelFolder, Hls4mlProject)
}
"""Classes by the ending of the file."""


def is_exported_model(path: Any) -> bool:
    """Whether this is the name of a file that may be an exported model."""
    if not isinstance(path, (str, Path)):
        return False
    kind = MODEL_CLASSES.get(Path(path).suffix)
    return kind is not None and (kind.is_folder or not Path(path).is_dir())


def load(path: Path) -> ExportedModel:
    """Load an exported model. The last few are kept, so that many small predictions do not load the file each time.

    Raises:
        ConfigError: The file does not exist or cannot be read.
    """
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(f"no file {path}") from None
    return _loaded(path, status.st_mtime_ns, status.st_size, torch.get_num_threads())


@functools.lru_cache(maxsize=_LOADED_MODELS)
def _loaded(path: Path, modified: int, size: int, threads: int) -> ExportedModel:
    return MODEL_CLASSES[path.suffix](path)


def _is_usable(column: Any) -> bool:
    """Whether torch can use the memory of a column."""
    return isinstance(column, np.ndarray) and column.flags.c_contiguous and column.flags.writeable


@dataclass
class ExportedModelRunner(ModelRunner):
    """Runs an exported model. `recipe` reconstructs objects from its outputs."""

    def portion(self, samples: Table) -> SamplePortion:
        """Prepare samples. Their memory is used as it is where that is possible."""
        assert isinstance(self.model, ExportedModel)
        names = {item.column for item in self.model.facts.inputs}
        if not self.model.uses_memory or not all(_is_usable(samples.get(name)) for name in names):
            return super().portion(samples)
        tensors = {name: torch.from_numpy(samples.fixed(name)) for name in names}
        starts = range(0, len(samples), self.size)
        batches = [
            Batch(min(self.size, len(samples) - start), {n: t[start : start + self.size] for n, t in tensors.items()})
            for start in starts
        ]
        return SamplePortion(samples, batches)

    def outputs(self, batch: Batch) -> Any:
        try:
            return self.model(batch)
        except ClewError:
            raise
        except Exception as error:
            raise mismatch_error(error, batch) from error

    def _find_mode(self, batch: Batch) -> Mode:
        """Return the inference mode: no exported model computes gradients, so no batch is computed for a trial."""
        return torch.inference_mode


@dataclass(frozen=True)
class ExportedModelTask(InferenceTask):
    """A task for an exported model."""

    file: Path = field(default=Path())

    def engine(self, device: torch.device) -> ModelRunner:
        return ExportedModelRunner(self.recipe, load(self.file), torch.device("cpu"), self.size)


@dataclass(frozen=True)
class ExportedModelEvents(RawEvents):
    """Raw events that pass through the recipe and the transforms that an exported model names."""

    saved: tuple[dict[str, Any], ...] = ()
    items: ItemGroups | None = None

    def input_items(self) -> ItemGroups | None:
        return self.items

    def fitted_transforms(self) -> list[Transform]:
        return [
            type(transform).model_validate(facts)
            for transform, facts in zip(self.recipe.transforms(), self.saved, strict=True)
        ]


def recipe_from_facts(facts: ExportFacts) -> Recipe:
    """Return the recipe with which an exported model was trained.

    Raises:
        RecipeError: It is not installed here.
    """
    saved = Path(facts.recipe.partition(".py:")[0] + ".py")
    location = facts.recipe if saved.is_file() or not facts.original_recipe else facts.original_recipe
    if "." in location:  # a file, which may change
        return _build_recipe(location, facts.settings)
    return _installed_recipe(location, json.dumps(facts.settings))


@functools.lru_cache(maxsize=_LOADED_MODELS)
def _installed_recipe(name: str, settings: str) -> Recipe:
    """Return a recipe by name. It is kept, because many small predictions would check the same settings each time."""
    return _build_recipe(name, json.loads(settings))


def _build_recipe(location: str, settings: dict[str, Any]) -> Recipe:
    kind = find(location)
    return kind(validate(kind.Config, Document(settings, source="the exported model")))


def read_trusted_facts(path: Path, use_recipe: bool) -> ExportFacts:
    """Read the description of an exported file, if neither the file nor the recipe that it names run code unasked.

    A file that this user exported or trusted is read. Of others, ONNX and Keras files are: they hold no code.

    Args:
        path: The file, or the folder of a SavedModel or an hls4ml project.
        use_recipe: Whether the recipe that the file names is used.

    Raises:
        RunError: It would run code that this user neither exported nor trusted.
        ConfigError: The file does not exist or cannot be read.
    """
    kind = MODEL_CLASSES[path.suffix]
    if kind.holds_code and path.exists() and not _is_trusted(path):
        raise refusal(path, _OTHER, [f"a {path.suffix} file is a program"])
    facts = read_facts(path)
    recipes = [each for each in (facts.recipe, facts.original_recipe) if each]
    code = [each for each in recipes if code_references({**facts.settings, "recipe": each})]
    if use_recipe and code and not _is_trusted(path):
        raise refusal(path, _OTHER, [f"the recipe {code[0]}"])
    return facts


def _is_trusted(path: Path) -> bool:
    """Whether this user exported or trusts a file. One that did not change since it was trusted is not hashed again."""
    status = path.stat()
    state = (path, status.st_mtime_ns, status.st_ctime_ns, status.st_size)
    if state in _trusted_files and stat.S_ISREG(status.st_mode):
        return True
    trusted = is_file_trusted(path)
    if trusted:
        _trusted_files.add(state)
    return trusted


def read_facts(path: Path) -> ExportFacts:
    """Read the description of an exported file. A `.pt2` file and a SavedModel are executed by this."""
    return load(path).facts


def meeting_run(path: Path) -> Run:
    """Return a run at the location of the file: ranks use its folder to find each other."""
    return Run(path.absolute())


def facts_to_json(facts: ExportFacts) -> str:
    """Return the description as it is written to a file."""
    return json.dumps(facts.model_dump(mode="json"))
