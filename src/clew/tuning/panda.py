"""PanDA's hyper-parameter optimisation (phpo, iDDS): proposing points, and judging one on the grid.

Steering reads `{"points": [[point, loss or null], ...], "opt_space": ...}` and writes a list of new points; nothing is
remembered between two calls. Judging reads a point and a list of files, and writes `{"status", "loss", "message"}`.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import shutil
import tarfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import TrialState, create_trial

from clew.core.files import write_text
from clew.data.dataset import Dataset
from clew.errors import ClewError, ConfigError, DataError, RunError, nearest
from clew.runs import Run
from clew.tuning import objectives, optuna_setup, space
from clew.tuning.config import Parameter, TuneConfig
from clew.tuning.space import Template

WORST = 1e30
"""The loss of what failed: it must be a number."""
_WIDTH = 3.0
"""Standard deviations to either side to which a normal distribution is cut."""
_TRIES = 50


@dataclass
class _Segment:
    """A space and the points known in it; `model` is None where there are no segments."""

    model: Any
    space: dict[str, Parameter]
    grid: bool
    known: list[tuple[dict[str, Any], float | None]] = field(default_factory=list)


def steer(given: Mapping[str, Any], *, number: int, most: int, seed: int | None = None) -> list[Any]:
    """New points, at most `number`, and so that there are at most `most` with those given.

    Raises:
        ConfigError: the space or a point is in no dialect that is known.
    """
    if not isinstance(given, Mapping):
        raise ConfigError('expected {"points": [...], "opt_space": ...}')
    points = given.get("points", [])
    segments = _segments(given.get("opt_space"))
    for entry in points:
        _remember(segments, entry)
    found: list[Any] = []
    for _ in range(max(0, min(number, most - len(points)))):
        segment = min(segments, key=lambda each: len(each.known))
        point = _propose(segment, seed if seed is None else seed + len(found))
        segment.known.append((point, None))
        found.append(point if segment.model is None else [segment.model, point])
    return found


def _segments(given: Any) -> list[_Segment]:
    if isinstance(given, list):
        named = [each if isinstance(each, Mapping) else {} for each in given]
        return [_segment(each.get("model_id"), each.get("search_space")) for each in named]
    return [_segment(None, given)]


def _segment(model: Any, given: Any) -> _Segment:
    if not isinstance(given, Mapping) or not given:
        raise ConfigError("opt_space: expected a mapping of parameters, or a list of {model_id, search_space}")
    grid = all(each.get("dimension", {}).get("grid_search") for each in given.values() if isinstance(each, Mapping))
    return _Segment(model, {name: parameter(name, each) for name, each in given.items()}, grid)


def _remember(segments: Sequence[_Segment], entry: Any) -> None:
    try:
        point, loss = entry
        model, values = point if isinstance(point, list) else (None, point)
        segment = next(each for each in segments if each.model == model)
        segment.known.append((dict(values), None if loss is None else float(loss)))
    except (TypeError, ValueError, StopIteration) as error:
        raise ConfigError(f"points: {json.dumps(entry)[:80]} is no point of this space") from error


def parameter(name: str, given: Any) -> Parameter:
    """A parameter from either dialect: {"method", "dimension"}, or nevergrad's {"type", "params" or "bounds"}.

    Raises:
        ConfigError: it is in neither.
    """
    try:
        if not isinstance(given, Mapping):
            raise TypeError("expected a method and its dimension, or a type and its bounds")
        if "method" in given:
            return _by_method(str(given["method"]).lower(), given.get("dimension", {}))
        return _by_type(str(given["type"]), given)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"opt_space: {name}: {json.dumps(given)[:100]} is not understood ({error})") from None


def dialect(given: Parameter) -> dict[str, Any]:
    """A parameter as PanDA's files have it; `parameter` takes it back.

    Raises:
        ConfigError: PanDA has no conditions.
    """
    if given.when:
        raise ConfigError("PanDA knows no conditions: leave out `when`, or search here")
    if given.choice is not None:
        return {"method": "categorical", "dimension": {"categories": list(given.choice), "grid_search": 0}}
    low, high = given.bounds or (0, 0)
    method = ("loguniform" if given.log is not None else "uniform") + ("int" if given.integer else "")
    if given.step is not None and not given.integer:
        return {"method": "quniform", "dimension": {"low": low, "high": high, "q": given.step}}
    return {"method": method, "dimension": {"low": low, "high": high}}


def _by_method(method: str, dimension: Mapping[str, Any]) -> Parameter:
    if method == "categorical":
        return Parameter(choice=tuple(dimension["categories"]))
    plain = method.removesuffix("int")
    step = dimension.get("q") if plain.startswith("q") else None
    plain = plain.removeprefix("q") if step is not None else plain
    integer = method.endswith("int")
    if plain in ("normal", "lognormal"):
        middle, width = float(dimension["mu"]), float(dimension["sigma"])
        low, high = middle - _WIDTH * width, middle + _WIDTH * width
        plain = plain.replace("normal", "uniform")
        low, high = (math.exp(low), math.exp(high)) if plain == "loguniform" else (low, high)
    else:
        low, high = dimension["low"], dimension["high"]
        if plain == "loguniform" and low <= 0:  # exponents, as hyperopt has them
            low, high = math.exp(low), math.exp(high)
    if plain == "loguniform":
        return Parameter(log=(low, high), integer=integer)
    if plain != "uniform":
        known = (
            "categorical",
            "uniform",
            "uniformint",
            "quniform",
            "loguniform",
            "loguniformint",
            "normal",
            "lognormal",
        )
        raise ValueError(f"method '{method}'{nearest(method, known)}")
    return Parameter(uniform=(low, high), integer=integer, step=step)


def _by_type(kind: str, given: Mapping[str, Any]) -> Parameter:
    told = {**given, **given.get("params", {})}
    if kind in ("Choice", "TransitionChoice"):
        return Parameter(choice=tuple(told["choices"]))
    if kind not in ("Scalar", "Log"):
        raise ValueError(f"type '{kind}'{nearest(kind, ('Choice', 'TransitionChoice', 'Scalar', 'Log'))}")
    low, high = told["bounds"] if "bounds" in told else (told["lower"], told["upper"])
    integer = bool(told.get("integer") or told.get("integer_casting"))
    return (
        Parameter(log=(low, high), integer=integer)
        if kind == "Log"
        else Parameter(uniform=(low, high), integer=integer)
    )


def _propose(segment: _Segment, seed: int | None) -> dict[str, Any]:
    """A point that is not known yet, where there is one."""
    taken = {json.dumps(point, sort_keys=True) for point, _ in segment.known}
    for point in _candidates(segment, seed):
        if json.dumps(point, sort_keys=True) not in taken:
            return point
    return point


def _candidates(segment: _Segment, seed: int | None) -> Iterator[dict[str, Any]]:
    if segment.grid:
        names = list(segment.space)
        for values in itertools.product(*(segment.space[name].choice or () for name in names)):
            yield dict(zip(names, values, strict=True))
    config = TuneConfig(space=segment.space, sampler={"name": "tpe", "seed": seed})
    study = optuna.create_study(sampler=optuna_setup.create_sampler(config))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for point, loss in segment.known:
            _add(study, segment.space, point, loss)
    for _ in range(_TRIES):
        yield space.suggest_values(study.ask(), segment.space)
    wild = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=random.Random(seed).randrange(1 << 30)))
    for _ in range(_TRIES):
        yield space.suggest_values(wild.ask(), segment.space)


def _add(study: optuna.Study, known: space.Space, point: Mapping[str, Any], loss: float | None) -> None:
    """Let the sampler know of a point; one that lies outside of the space tells it nothing."""
    probe = optuna.trial.FixedTrial({name: known[name].label(value) for name, value in point.items() if name in known})
    try:
        space.suggest_values(probe, known)
    except ValueError:
        return
    state = TrialState.RUNNING if loss is None else TrialState.COMPLETE
    given: dict[str, Any] = {} if loss is None else {"value": loss}
    study.add_trial(create_trial(params=probe.params, distributions=probe.distributions, state=state, **given))


def evaluate(
    template: Template,
    point: Any,
    files: Sequence[str],
    *,
    folder: Path,
    names: Mapping[str, str] | None = None,
    begun: Callable[[Run], None] | None = None,
) -> dict[str, Any]:
    """Prepare the files and train at a point, in `folder` alone; the contents of output.json. The run is in `run`,
    more about it in metadata.json and metrics.tgz.

    A run that is there already is gone on with: the grid brings back checkpoints of a job that it tries again. Mistakes
    and failures come out as a status other than 0 with the loss `WORST`. `begun` is called with the run before
    any work.
    """
    try:
        loss, facts = _judged(template, point, files, folder, names or {}, begun)
    except (ClewError, objectives.MissingMetricError, OSError) as error:
        return {"status": getattr(error, "exit_code", 1) or 1, "loss": WORST, "message": str(error)}
    if not math.isfinite(loss):
        return {"status": 1, "loss": WORST, "message": f"the objective is {loss}"}
    write(folder / "metadata.json", facts)
    return {"status": 0, "loss": loss, "message": "ok"}


def trained(template: Template, files: Sequence[str], *, folder: Path) -> Run:
    """A training as a job of PanDA's does it: files to a dataset, a run in `folder`, and beside it what goes back: the
    best weights, figures in metrics.json and userJobMetadata.json, records in metrics.tgz.

    Raises whatever keeps it from that.
    """
    _, facts = _judged(template, {}, files, folder, {})
    run = Run(folder / "run")
    found: dict[str, Any] = next(run.reversed_records(kinds=("validation",)), {"metrics": {}})
    told = {
        "figures": facts,
        "metrics": found["metrics"],
        "dataset": Dataset(_dataset(template, files, folder)).manifest.key,
    }
    for name in ("metrics.json", "userJobMetadata.json"):
        write(folder / name, told)
    shutil.copy(run.checkpoint("best"), folder / "model.safetensors")
    return run


def _dataset(template: Template, files: Sequence[str], folder: Path) -> Path:
    return folder / "dataset" if files else Path(template.train.dataset)


def _judged(
    template: Template,
    point: Any,
    files: Sequence[str],
    folder: Path,
    names: Mapping[str, str],
    begun: Callable[[Run], None] | None = None,
) -> tuple[float, dict[str, Any]]:
    from clew.data.prepare.api import prepare
    from clew.training.api import resume, train

    config = template.tune or TuneConfig()
    goal = config.objectives[0]
    values = _keys(template, point, names)
    dataset = _dataset(template, files, folder)
    fixed: dict[str, Any] = {"train.dataset": str(dataset.absolute()), "train.keep_checkpoints": 1}
    if goal.validated is not None:
        fixed |= {"train.best.metric": goal.validated, "train.best.direction": goal.direction}
    changed = template.changed({**fixed, **values}, "the point")
    if files:
        inputs = [str(folder / each) for each in files]
        prepare(changed.recipe, changed.prepare, input=inputs, output=str(dataset), cache=str(folder / "cache"))
    run = Run(folder / "run")
    if not run.config_file.exists():
        train(changed.recipe, None, changed.train, output=run.path, begun=begun)
    elif other := _elsewhere(run, changed.data, values):
        raise RunError(f"{run.path} was trained at another point ({other}); remove it, or work in another folder")
    elif run.state != "finished":
        resume(run, begun=begun)
    value = objectives.objective_values(run, [goal])[0]
    _pack(run, folder / "metrics.tgz")
    sign = 1 if goal.direction == "minimize" else -1
    spent = objectives.run_cost(run)
    return sign * value, {goal.metric: value, "seconds": spent.seconds, "cpu_seconds": spent.cpu, "settings": values}


def _elsewhere(run: Run, wanted: Mapping[str, Any], keys: Iterable[str]) -> str:
    """The first of these settings that a run has otherwise than it is wanted; '' where there is none."""
    there = run.config().data
    return next((key for key in keys if _at(there, key) != _at(wanted, key)), "")


def _at(data: Any, key: str) -> Any:
    for name in key.split("."):
        data = data.get(name) if isinstance(data, Mapping) else None
    return data


def _keys(template: Template, point: Any, names: Mapping[str, str]) -> dict[str, Any]:
    """The settings that a point stands for: named in full, by `names`, or by the end of a key of the space."""
    values = point[1] if isinstance(point, list) and len(point) == 2 else point
    if not isinstance(values, Mapping):
        raise DataError(f"a point is a mapping of settings, not {json.dumps(point)[:80]}")
    known = template.tune.space if template.tune is not None else {}
    found = {}
    for name, value in values.items():
        ends = [key for key in known if key == name or key.endswith(f".{name}")]
        found[names.get(name) or (ends[0] if len(ends) == 1 else name)] = value
    return found


def _pack(run: Run, path: Path) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for each in (run.config_file, run.environment_file, run.records_folder):
            archive.add(each, arcname=each.relative_to(run.path))


def write(path: Path, content: Any) -> None:
    """A JSON file, whole or not at all."""
    write_text(path, json.dumps(content, allow_nan=False) + "\n")


def read(path: Path) -> Any:
    """What is in a JSON file.

    Raises:
        DataError: it cannot be read.
    """
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as JSON ({error})") from error
