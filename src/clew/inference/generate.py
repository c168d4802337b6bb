"""`clew.generate`: events that the trained model of a generative recipe draws, written to a file."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from clew.core.files import atomic_path
from clew.core.stability import experimental
from clew.core.trust import trust_file
from clew.data.dataset.batch import Batch
from clew.data.table import Table, concat
from clew.data.writers import TableWriter, write_in_background
from clew.errors import ConfigError
from clew.inference import exported_model
from clew.inference.model_runner import ModelRunner, SamplePortion
from clew.inference.parallel_inference import InferenceTask, ProgressCallback, run_task
from clew.inference.sample_sources import Unit
from clew.jobs.rank_info import current_rank
from clew.jobs.worker_process import check_not_in_worker
from clew.recipe import Recipe
from clew.runs import Run
from clew.training import checkpoint
from clew.training.device import device_or_default
from clew.training.run_recipe import recipe_of_run
from clew.training.validation import build_model, outputs_by_name

Ranges = Mapping[str, tuple[float, float]]
GPU_BATCH, CPU_BATCH = 10_000, 256


@experimental(since="0.1.0")
def generate(
    run: Run | str | Path,
    *,
    events: int,
    ranges: Ranges,
    output: str | Path,
    seed: int = 0,
    workers: int = 1,
    batch_size: int | None = None,
    weights: str = "best",
    device: str = "auto",
    replace: bool = False,
    trust: bool = False,
    progress: ProgressCallback | None = None,
) -> Path:
    """Generate events with the trained model of a generative recipe, such as showers of `fastsim`.

    The same seed gives the same file on the same kind of device, for any number of workers.

    Args:
        run: The run or its folder, or a file that `clew.export` wrote (ONNX files run in onnxruntime on the CPU).
        events: Number of events.
        ranges: Lowest and highest value by name: `{"energy": (1, 100)}` in GeV, `{"theta": (0, 10)}` in degrees.
        output: The file to write. The recipe chooses the layout: showers are written as in the CaloChallenge.
        seed: Seed of the random numbers.
        workers: Number of processes.
        batch_size: Events per batch. Default: 10,000 on a GPU, 256 on a CPU.
        weights: Which weights of the run: "best" or "last".
        replace: Whether an existing file may be replaced.
        device, trust: See `clew.train` and `clew.evaluate`.
        progress: Called with the number of events done and of all events.

    Returns:
        The path of the file.

    Raises:
        ConfigError: A number or a range is not valid, or the file exists.
        RecipeError: The recipe generates nothing.
        RunError: The run has no such weights, or it came from elsewhere and its code was not trusted.

    Example:
        >>> import clew
        >>> clew.generate("runs/sum", events=10, ranges={}, output="drawn.h5")
        Traceback (most recent call last):
        ...
        clew.errors.RecipeError: recipe Columns generates nothing: it does not define draw_inputs()
    """
    check_not_in_worker("clew.generate")
    path = Path(output)
    _check_numbers(events, seed, path, replace=replace)
    task = _generation_task(run, weights, trust=trust)
    writer = _check_recipe(task, ranges, path)
    place = device_or_default(current_rank().local_rank, device)
    size = batch_size or (CPU_BATCH if place.type == "cpu" else GPU_BATCH)
    samples = DrawnInputs(task.recipe, events, seed, dict(ranges))
    with atomic_path(path) if current_rank().rank == 0 else contextlib.nullcontext(path) as temporary:
        work = GenerationWork(writer, temporary)
        task = dataclasses.replace(task, samples=samples, size=size, work=work, device=device)
        run_task(task, workers=workers, progress=progress)
    return path


def _check_numbers(events: int, seed: int, path: Path, *, replace: bool) -> None:
    if events < 1 or not 0 <= seed < 1 << 40:
        raise ConfigError(f"events must be 1 or more and seed from 0 to 2^40, got {events} and {seed}")
    if path.exists() and not replace:
        raise ConfigError(f"{path} exists already; name another --output, or use --replace")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"{path}: no folder {path.parent}")


def _check_recipe(task: Any, ranges: Ranges, path: Path) -> type[TableWriter]:
    """Check that the recipe can generate these events, and return the class that writes them."""
    recipe: Recipe = task.recipe
    recipe.draw_inputs(np.zeros(0, dtype=np.int64), 0, {"energy": (1.0, 1.0)})  # reports a recipe that cannot generate
    recipe.check_ranges(task.trained_model(), ranges)
    return recipe.generated_writer(path)


def _generation_task(run: Any, weights: str, *, trust: bool) -> GenerationTask | ExportedGenerationTask:
    is_file = exported_model.is_exported_model(run)
    return _file_task(run, trust=trust) if is_file else _run_task(run, weights, trust=trust)


def _run_task(run: Any, weights: str, *, trust: bool) -> GenerationTask:
    opened = run if isinstance(run, Run) else Run.open(run)
    recipe, config = recipe_of_run(opened, trust=trust)
    if config.replicas is not None:
        raise ConfigError(f"{opened.path}: an ensemble; generate with one of its members")
    return GenerationTask(opened, recipe, weights, *_UNUSED)


def _file_task(file: Any, *, trust: bool) -> ExportedGenerationTask:
    path = Path(file).absolute()
    if not path.exists():
        raise ConfigError(f"no file {path}")
    if trust:
        trust_file(path)
    facts, run = exported_model.read_trusted_facts(path, use_recipe=True), exported_model.meeting_run(path)
    return ExportedGenerationTask(run, exported_model.recipe_from_facts(facts), "best", *_UNUSED, file=path)


@dataclass(frozen=True)
class DrawnInputs:
    """Samples that a recipe draws."""

    recipe: Recipe
    total: int
    seed: int
    ranges: Ranges
    title: ClassVar[str] = "drawn inputs"
    ahead: ClassVar[int] = 1

    def check(self, columns: Sequence[str]) -> None:
        """Do nothing: drawn samples have no labels."""

    def units(self, size: int, ranks: int) -> Iterator[Unit]:
        """Yield one unit per batch."""
        return (partial(self._draw, first, size) for first in range(0, self.total, size))

    def _draw(self, first: int, size: int) -> Table:
        numbers = np.arange(first, min(first + size, self.total), dtype=np.int64)
        return self.recipe.draw_inputs(numbers, self.seed, self.ranges)


@dataclass(frozen=True)
class GenerationWork:
    """Writes generated events to a file."""

    writer: type[TableWriter]
    path: Path
    losses: bool = False

    def one(self, engine: ModelRunner, portion: SamplePortion) -> Table:
        return concat([engine.recipe.reconstruct(each.samples, each.outputs) for each in engine.run_joined(portion)])

    def all(self, results: Iterator[Table]) -> None:
        with write_in_background(self.writer(self.path)) as append:
            for table in results:
                append(table)


_UNUSED: tuple[Any, int, Any] = (None, 1, None)
"""Samples, batch size and work of a task before they are known."""


@dataclass(frozen=True)
class GenerationTask(InferenceTask):
    """A task for the model of a run."""

    def engine(self, device: torch.device) -> ModelRunner:
        model = build_model(self.recipe)
        checkpoint.load(model, self.run.checkpoint(self.weights))
        return RecordedRunner(self.recipe, model, device, self.size)

    def trained_model(self) -> nn.Module | None:
        """Return the model with its weights."""
        return self.engine(torch.device("cpu")).model


@dataclass(frozen=True)
class ExportedGenerationTask(exported_model.ExportedModelTask):
    """A task for an exported model."""

    def trained_model(self) -> nn.Module | None:
        """Return None: an exported model does not tell what it was trained on."""
        return None


@dataclass
class RecordedRunner(ModelRunner):
    """Runs a model. On an NVIDIA GPU its forward pass is recorded once per batch size, and replayed in bf16."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._recordings: dict[int, _Recording] = {}

    def outputs(self, batch: Batch) -> Any:
        if self.device.type != "cuda":
            return super().outputs(batch)
        with torch.autocast("cuda", torch.bfloat16):
            if batch.size not in self._recordings:
                self._recordings[batch.size] = _Recording(self.recipe, self.model, batch)
            return self._recordings[batch.size].replay(batch)


class _Recording:
    """The forward pass for batches of one size, as a CUDA graph."""

    def __init__(self, recipe: Recipe, model: nn.Module, batch: Batch) -> None:
        self._inputs = Batch(batch.size, {name: batch[name].clone() for name in batch.columns})
        stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # libraries select algorithms
            recipe.forward(model, self._inputs)
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._outputs = outputs_by_name(recipe.forward(model, self._inputs))

    def replay(self, batch: Batch) -> dict[str, Tensor]:
        """Return the outputs for a batch. The next call overwrites nothing of them."""
        for name in self._inputs.columns:
            self._inputs[name].copy_(batch[name])
        self._graph.replay()
        return {name: value.clone() for name, value in self._outputs.items()}
