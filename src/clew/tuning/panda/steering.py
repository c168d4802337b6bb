"""The steering step of PanDA: propose new points."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import optuna
from optuna.trial import TrialState

from clew.errors import ConfigError
from clew.tuning import optuna_setup, space
from clew.tuning.config import Parameter, TuneConfig
from clew.tuning.panda.parameters import from_panda

_TRIES = 50
"""Proposals of a sampler before a point that exists already is accepted."""


@dataclass
class _Segment:
    """A search space and the points in it. `model` is None if the space has no segments."""

    model: Any
    space: dict[str, Parameter]
    grid: bool
    points: list[tuple[dict[str, Any], float | None]] = field(default_factory=list)
    """Points and their losses; None for a point that is not evaluated yet."""


def steer(request: Mapping[str, Any], *, count: int, limit: int, seed: int | None = None) -> list[Any]:
    """Propose new points.

    Args:
        request: `{"points": [[point, loss or null], ...], "opt_space": ...}`.
        count: Largest number of new points.
        limit: Largest number of points in total.
        seed: Seed of the sampler.

    Raises:
        ConfigError: The space or a point has an unknown format.
    """
    if not isinstance(request, Mapping):
        raise ConfigError('expected {"points": [...], "opt_space": ...}')
    points = request.get("points", [])
    segments = _read_segments(request.get("opt_space"))
    for entry in points:
        _add_point(segments, entry)
    proposals: list[Any] = []
    for _ in range(max(0, min(count, limit - len(points)))):
        segment = min(segments, key=lambda candidate: len(candidate.points))
        point = _propose(segment, seed if seed is None else seed + len(proposals))
        segment.points.append((point, None))
        proposals.append(point if segment.model is None else [segment.model, point])
    return proposals


def _read_segments(opt_space: Any) -> list[_Segment]:
    if isinstance(opt_space, list):
        entries = [entry if isinstance(entry, Mapping) else {} for entry in opt_space]
        return [_read_segment(entry.get("model_id"), entry.get("search_space")) for entry in entries]
    return [_read_segment(None, opt_space)]


def _read_segment(model: Any, entries: Any) -> _Segment:
    if not isinstance(entries, Mapping) or not entries:
        raise ConfigError("opt_space: expected a mapping of parameters, or a list of {model_id, search_space}")
    mappings = [entry for entry in entries.values() if isinstance(entry, Mapping)]
    grid = all(entry.get("dimension", {}).get("grid_search") for entry in mappings)
    return _Segment(model, {name: from_panda(name, entry) for name, entry in entries.items()}, grid)


def _add_point(segments: Sequence[_Segment], entry: Any) -> None:
    try:
        point, loss = entry
        model, values = point if isinstance(point, list) else (None, point)
        segment = next(candidate for candidate in segments if candidate.model == model)
        segment.points.append((dict(values), None if loss is None else float(loss)))
    except (TypeError, ValueError, StopIteration) as error:
        raise ConfigError(f"points: {json.dumps(entry)[:80]} is not a point of this space") from error


def _propose(segment: _Segment, seed: int | None) -> dict[str, Any]:
    """Return a point that does not exist yet, if possible."""
    existing = {json.dumps(point, sort_keys=True) for point, _ in segment.points}
    for point in _candidates(segment, seed):
        if json.dumps(point, sort_keys=True) not in existing:
            return point
    return point


def _candidates(segment: _Segment, seed: int | None) -> Iterator[dict[str, Any]]:
    if segment.grid:
        names = list(segment.space)
        for values in itertools.product(*(segment.space[name].choice or () for name in names)):
            yield dict(zip(names, values, strict=True))
    config = TuneConfig(space=segment.space, sampler={"name": "tpe", "seed": seed})
    study = optuna.create_study(sampler=optuna_setup.create_sampler(config))
    for point, loss in segment.points:
        state = TrialState.RUNNING if loss is None else TrialState.COMPLETE
        trial = space.frozen_trial(segment.space, point, None if loss is None else [loss], state=state)
        if trial is not None:  # a point outside of the space gives the sampler no information
            study.add_trial(trial)
    for _ in range(_TRIES):
        yield space.suggest_values(study.ask(), segment.space)
    seed = random.Random(seed).randrange(1 << 30)
    random_study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    for _ in range(_TRIES):
        yield space.suggest_values(random_study.ask(), segment.space)
