"""`clew.export`: a run's model as a file that works without the run and without clew."""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from clew.core.files import atomic_path, remove
from clew.core.html_table import html_table
from clew.core.trust import trust_file
from clew.data.dataset import Dataset, Manifest
from clew.data.dataset.batch import Batch, to_batch
from clew.data.table import Table
from clew.data.transforms import Transform
from clew.errors import ConfigError, DataError, RecipeError, RunError, nearest
from clew.inference.export import parity, preprocessing
from clew.inference.export.cpp_example import example_path, write_example
from clew.inference.export.formats import FORMATS, ExportWork, FileWriter, output_names, write_hls4ml
from clew.inference.export.hls4ml_project import Precision
from clew.inference.exported_model import MODEL_CLASSES, ExportedModel, facts_to_json
from clew.inference.flat_forward import ExportFacts, FlatForward, ModelInput, find_inputs
from clew.recipe import Recipe
from clew.runs import Run
from clew.training import checkpoint
from clew.training.run_recipe import recipe_of_run
from clew.training.validation import build_model
from clew.version import __version__

TOLERANCE = 1e-4
_TRACED_SAMPLES = 5
"""Samples used for tracing: more than one, so that no size looks like a constant."""


class Export(NamedTuple):
    """A file that was written, and its description."""

    path: Path
    facts: ExportFacts

    def __repr__(self) -> str:
        names = f"{', '.join(item.name for item in self.facts.inputs)} -> {', '.join(self.facts.outputs)}"
        return f"Export({self.path}: {names}, difference {self.facts.difference:.1g})"

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        facts = self.facts
        rows = [
            ("run", facts.run),
            ("inputs", ", ".join(item.name for item in facts.inputs)),
            ("outputs", ", ".join(facts.outputs)),
            ("included", ", ".join(facts.included)),
            ("left out", ", ".join(facts.left_out)),
            ("difference", f"{facts.difference:.1g} (tolerance {facts.tolerance:g})"),
        ]
        return html_table(f"Export {self.path}", [(name, value) for name, value in rows if value])


def export(
    run: Run | str | Path,
    *,
    to: str = "onnx",
    output: str | Path | None = None,
    weights: str = "best",
    tolerance: float = TOLERANCE,
    data: str | Path | Dataset | None = None,
    split: str | None = None,
    recipe: Recipe | type[Recipe] | str | Callable[..., Any] | None = None,
    replace: bool = False,
    keep_float64: bool = False,
    cpp: bool = False,
    precision: str | None = None,
    current_code: bool = False,
    trust: bool = False,
) -> Export:
    """Write a run's model to a file that works without the run and without clew.

    The file holds the network with its weights, the scaling of its inputs where the recipe only scales columns, and a
    description of itself (`ExportFacts`). It is kept only if it agrees with the original on samples.

    Args:
        run: The run or its folder.
        to: "onnx", "torch" (.pt2), for Keras models "keras" or "savedmodel", for dense networks "hls4ml" (firmware).
        output: The file. Default: the name of the run with the ending of the format.
        tolerance: Largest allowed difference, relative to the larger of 1 and the value of the original.
        data, split: What to compare on. Default: the split `test` of the run's dataset, or `val` if there is no `test`.
        keep_float64: Whether inputs that are float64 in the samples stay float64. By default they become float32.
        cpp: Whether to write an example in C++ next to an ONNX file: the same name with the ending `.cpp`.
        precision: Numbers of an hls4ml project. Default: "ap_fixed<40,14>", 40 bits of which 14 are before the point.
        weights, recipe, current_code, trust: See `clew.evaluate`.

    Returns:
        The path of the file, and its description. `facts.inputs` describes every input.

    Raises:
        RecipeError: The model cannot be exported, or file and original do not agree.
        UserError: Something that is needed is missing or does not fit.

    Example:
        >>> import clew
        >>> from torch import nn
        >>> exported = clew.export("runs/sum", to="torch", output="sum.pt2", split="val", recipe=nn.Linear(2, 1))
        >>> exported.path.name, exported.facts.outputs
        ('sum.pt2', ('output',))
    """
    run = run if isinstance(run, Run) else Run.open(run)
    ending, make_writer = _format(to, precision)
    path = _check_output(Path(output) if output else Path(f"{run.name}{ending}"), ending, cpp, replace=replace)
    loaded, config = recipe_of_run(run, recipe, current_code=current_code, trust=trust)
    model, manifest = _load_model(loaded, run, weights), Manifest.load(run.dataset_file)
    samples = parity.read_samples(data if isinstance(data, Dataset) else Dataset(data or config.dataset), split)
    work, done = _prepare(loaded, model, samples, _fitted(loaded, manifest), keep_float64=keep_float64)
    try:
        facts = _facts(run, loaded, manifest, work, done, weights=weights, tolerance=tolerance)
        facts = _write(path, make_writer(work), facts, (loaded, model, list(parity.trial_batches(samples, loaded))))
    except RecipeError as error:
        raise RecipeError(f"{run.path} to {to}: {error}; nothing was written") from error
    return _exported(path, facts, loaded if cpp else None)


def _fitted(recipe: Recipe, manifest: Manifest) -> list[Transform]:
    return [type(t).model_validate(facts) for t, facts in zip(recipe.transforms(), manifest.transforms, strict=True)]


def _exported(path: Path, facts: ExportFacts, example_of: Recipe | None) -> Export:
    if example_of is not None:
        write_example(path, facts, example_of.passthrough_columns())
    return Export(path, facts)


def _load_model(recipe: Recipe, run: Run, weights: str) -> nn.Module:
    model = build_model(recipe)
    checkpoint.load(model, run.checkpoint(weights))
    return model.eval()


def _facts(
    run: Run, recipe: Recipe, manifest: Manifest, work: ExportWork, done: preprocessing.Preprocessing, **facts: Any
) -> ExportFacts:
    return ExportFacts(
        run=run.name,
        config_hash=hashlib.sha256(run.config_file.read_bytes()).hexdigest(),
        dataset_key=manifest.key,
        clew_version=__version__,
        recipe=recipe.location,
        original_recipe=str(run.config().data.get("recipe", "")),
        settings=recipe.config.model_dump(mode="json"),
        transforms=manifest.transforms,
        input_items=manifest.input_items,
        inputs=work.inputs,
        outputs=output_names(work),
        recurrent=any(isinstance(module, nn.RNNBase) for module in work.model.modules()),
        included=done.included,
        left_out=done.left_out,
        difference=0.0,
        **facts,
    )


def _write(
    path: Path, writer: FileWriter, facts: ExportFacts, original: tuple[Recipe, nn.Module, list[Batch]]
) -> ExportFacts:
    """Write the file under a temporary name, compare it with the original, and write it again with the difference."""
    with atomic_path(path) as temporary:
        draft = temporary.with_suffix(path.suffix)
        try:
            writer(draft, facts_to_json(facts))
            difference = _check_difference(draft, facts.tolerance, *original)
            facts = facts.model_copy(update={"difference": difference})
            writer(draft, facts_to_json(facts))
            draft.replace(temporary)
        finally:
            remove(draft)
    with contextlib.suppress(RunError):  # a read-only home: predictions ask
        trust_file(path)
    return facts


def _format(to: str, precision: str | None) -> tuple[str, Callable[[ExportWork], FileWriter]]:
    """Return the ending and the writer of a format."""
    if to not in FORMATS:
        raise ConfigError(f"no format '{to}'{nearest(to, FORMATS)}")
    ending, make_writer = FORMATS[to]
    if precision is None:
        return ending, make_writer
    if make_writer is not write_hls4ml:
        raise ConfigError("only hls4ml projects have numbers of a chosen width; use --precision with --to hls4ml")
    return ending, functools.partial(write_hls4ml, precision=Precision.parse(precision))


def _check_output(path: Path, ending: str, cpp: bool, *, replace: bool) -> Path:
    if path.suffix != ending:
        raise ConfigError(f"{path}: the name of such a file ends in {ending}")
    if path.exists() and not replace:
        raise ConfigError(f"{path} exists already; name another --output, or use --replace")
    if cpp and ending != ".onnx":
        raise ConfigError("the C++ example runs ONNX files; use --cpp with --to onnx")
    if cpp and example_path(path).exists() and not replace:
        raise ConfigError(f"{example_path(path)} exists already; name another --output, or use --replace")
    return path


def _prepare(
    recipe: Recipe, model: nn.Module, samples: Table, transforms: Sequence[Transform], *, keep_float64: bool
) -> tuple[ExportWork, preprocessing.Preprocessing]:
    names = None if recipe.columns is None else [name for name in recipe.columns if name in samples]
    first: Batch = to_batch(samples.slice(0, _TRACED_SAMPLES), names)
    if first.size < 2:
        raise DataError("one sample is not enough to export a model; give more with data=")
    inputs = find_inputs(recipe, model, first)
    done = preprocessing.describe_preprocessing(recipe, transforms, inputs)
    scaled = [_with_scale(item, done) for item in inputs]
    described = tuple(item.described(item.of(first), keep_float64=keep_float64) for item in scaled)
    flat = FlatForward(recipe, model, described).eval()
    return ExportWork(flat, model, described, tuple(item.of(first) for item in described)), done


def _with_scale(item: ModelInput, done: preprocessing.Preprocessing) -> ModelInput:
    scale = done.scales.get(item.column) if item.part in ("column", "values", "padded") else None
    return item if scale is None else item.model_copy(update={"scale": scale})


def _hint(exported: ExportedModel) -> str:
    if exported.advice:
        return f"; {exported.advice}"
    narrowed = [item.name for item in exported.facts.inputs if item.sample_type]
    return f"; float64 inputs became float32 ({', '.join(narrowed)}): --keep-float64 keeps them" if narrowed else ""


def _check_difference(
    path: Path, tolerance: float, recipe: Recipe, model: nn.Module, batches: Sequence[Batch]
) -> float:
    """Return the difference between a file and the original.

    Raises:
        RecipeError: It is larger than the tolerance.
    """
    exported: ExportedModel = MODEL_CLASSES[path.suffix](path)
    worst = parity.largest_difference(recipe, model, exported, batches)
    if not worst.value <= tolerance:
        raise RecipeError(
            f"exported and original differ by {worst.value:.2g} in '{worst.output}' on a batch of {worst.size} "
            f"samples, more than the tolerance of {tolerance:g}{_hint(exported)}"
        )
    return worst.value
