"""`clew.export`: a run's model as a file that works without the run, and without clew."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from clew.core.files import atomic
from clew.data.dataset import Dataset, Manifest
from clew.data.dataset.batch import Batch, to_batch
from clew.data.table import Table
from clew.data.transforms import Transform
from clew.errors import ConfigError, DataError, RecipeError, nearest
from clew.inference.export import parity, preprocessing
from clew.inference.export.formats import FORMATS, ExportWork, output_names
from clew.inference.exported_model import MODEL_CLASSES, ExportedModel, facts_to_json
from clew.inference.flat_forward import ExportFacts, FlatForward, ModelInput, find_inputs
from clew.recipe import Recipe
from clew.runs import Run
from clew.training import checkpoint
from clew.training.run_recipe import recipe_of_run
from clew.version import __version__

TOLERANCE = 1e-4
_TRACED = 5
"""Samples the tracer sees: more than one, so that no size looks like a constant."""


class Export(NamedTuple):
    """A file that was written, and what it says of itself."""

    path: Path
    facts: ExportFacts


def export(
    run: Run | str | Path,
    *,
    to: str,
    output: str | Path | None = None,
    weights: str = "best",
    tolerance: float = TOLERANCE,
    data: str | Path | Dataset | None = None,
    split: str | None = None,
    recipe: Any = None,
    replace: bool = False,
) -> Export:
    """Write a run's model as `onnx`, `torch` (an exported program, .pt2) or `keras` (for one that came from Keras).

    The file has the network with its weights, the scaling of its inputs where the recipe's columns are scaled ones of
    the events (`Recipe.passthrough_columns`), and the facts of `clew.inference.flat_forward.ExportFacts`.
    `facts.left_out` names what is done to events that it does not do. Batches may have any size.

    It is kept only if it says what the original says on real samples (some of `split` of `data`, by default of the
    run's dataset) within `tolerance`: the largest difference over the larger of 1 and the original's value.
    `output` defaults to the run's name with the format's ending; an existing file is kept unless `replace`.

    Raises:
        RecipeError: the model cannot be exported, or exported and original do not agree.
        RunError, DataError, ConfigError: something needed is missing or does not fit.
    """
    run = run if isinstance(run, Run) else Run.open(run)
    ending, write = _format(to)
    path = _free(Path(output) if output else Path(f"{run.name}{ending}"), ending, replace=replace)
    made, config = recipe_of_run(run, recipe)
    model = made.model()
    checkpoint.load(model, run.checkpoint(weights))
    model.eval()
    samples = parity.read_samples(data if isinstance(data, Dataset) else Dataset(data or config.dataset), split)
    manifest = Manifest.load(run.dataset_file)
    fitted = [type(t).model_validate(facts) for t, facts in zip(made.transforms(), manifest.transforms, strict=True)]
    work, done = _prepared(made, model, samples, fitted)
    try:
        writer = write(work)
        facts = ExportFacts(
            run=run.name,
            config_hash=hashlib.sha256(run.config_file.read_bytes()).hexdigest(),
            dataset_key=manifest.key,
            clew_version=__version__,
            weights=weights,
            recipe=made.location,
            settings=made.config.model_dump(mode="json"),
            transforms=manifest.transforms,
            inputs=work.inputs,
            outputs=output_names(work),
            recurrent=any(isinstance(each, nn.RNNBase) for each in model.modules()),
            included=done.included,
            left_out=done.left_out,
            tolerance=tolerance,
            difference=0.0,
        )
        trials = list(parity.trial_batches(samples, made))
        with atomic(path) as temporary:
            ready = temporary.with_suffix(ending)
            try:
                difference = _tried(made, model, facts, writer, ready, trials)
                writer(ready, facts_to_json(facts.model_copy(update={"difference": difference})))
                ready.replace(temporary)
            finally:
                ready.unlink(missing_ok=True)
    except RecipeError as error:
        raise RecipeError(f"{run.path} to {to}: {error}; nothing was written") from error
    return Export(path, facts.model_copy(update={"difference": difference}))


def _format(to: str) -> tuple[str, Any]:
    if to not in FORMATS:
        raise ConfigError(f"no format '{to}'{nearest(to, FORMATS)}")
    return FORMATS[to]


def _free(path: Path, ending: str, *, replace: bool) -> Path:
    if path.suffix != ending:
        raise ConfigError(f"{path}: such a file ends in {ending}")
    if path.exists() and not replace:
        raise ConfigError(f"{path} exists already; name another --output, or use --replace")
    return path


def _prepared(
    recipe: Recipe, model: nn.Module, samples: Table, transforms: Sequence[Transform]
) -> tuple[ExportWork, preprocessing.Preprocessing]:
    names = None if recipe.columns is None else [name for name in recipe.columns if name in samples]
    few: Batch = to_batch(samples.slice(0, _TRACED), names)
    if few.size < 2:
        raise DataError("one sample is not enough to export a model with; give more with data=")
    inputs = find_inputs(recipe, model, few)
    done = preprocessing.describe_preprocessing(recipe, transforms, inputs)
    own = tuple(_with_scale(each, done) for each in inputs)
    flat = FlatForward(recipe, model, own).eval()
    return ExportWork(flat, model, own, tuple(each.of(few) for each in own)), done


def _with_scale(given: ModelInput, done: preprocessing.Preprocessing) -> ModelInput:
    scale = done.scales.get(given.column) if given.part in ("column", "values", "padded") else None
    return given if scale is None else given.model_copy(update={"scale": scale})


def _tried(
    recipe: Recipe, model: nn.Module, facts: ExportFacts, writer: Any, path: Path, trials: Sequence[Batch]
) -> float:
    """The difference of a file from the original.

    Raises:
        RecipeError: it is too large.
    """
    writer(path, facts_to_json(facts))
    exported: ExportedModel = MODEL_CLASSES[path.suffix](path)
    worst = parity.largest_difference(recipe, model, exported, trials)
    if not worst.value <= facts.tolerance:
        raise RecipeError(
            f"exported and original differ by {worst.value:.2g} in '{worst.output}' on a batch of {worst.size} "
            f"samples, more than the tolerance of {facts.tolerance:g}"
        )
    return worst.value
