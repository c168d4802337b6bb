"""What a preparation would do, stage by stage, and why."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from clew import storage
from clew.data.prepare.chain import Stage, StageChain
from clew.data.prepare.chain_run import InputPiece
from clew.data.prepare.content_keys import Parts, differences
from clew.data.prepare.plan import PreparePlan
from clew.data.prepare.stage_costs import StageCost
from clew.data.prepare.worker import stream_pieces
from clew.data.transforms import FittedTransform

INPUTS, DATASET = "inputs", "dataset"
"""What is explained besides stages."""


@dataclass(frozen=True)
class StageState:
    """The pieces of one stage: all, those in the cache, and those that a preparation would compute."""

    pieces: int
    cached: int
    computed: int

    @property
    def word(self) -> str:
        """`hit`, `miss`, `partly`, or `not needed` if a later stage is cached."""
        if self.computed:
            return "miss" if self.computed == self.pieces else "partly"
        return "hit" if self.cached == self.pieces else "not needed"


@dataclass(frozen=True)
class Explanation:
    """What a preparation would do."""

    dataset: str
    """`missing`, `up to date` or `another dataset`."""
    stages: dict[str, StageState]
    """The stages in order, by name."""
    reasons: dict[str, list[str]]
    """What changed, for `inputs` and `dataset`, and why each stage would be computed."""


def explain_plan(plan: PreparePlan, units: Sequence[InputPiece], dataset: str) -> Explanation:
    """Compare a plan with the cache and with the last preparation to the same output.

    Args:
        plan: The plan.
        units: Its pieces.
        dataset: The state of the dataset at the output.
    """
    transforms = plan.fitted_before()
    states = _states(plan, plan.chain(transforms), units)
    last = plan.last()
    if last is None:
        reasons = {name: ["nothing was prepared to this output before"] for name in (INPUTS, DATASET, *states)}
        return Explanation(dataset, states, reasons)
    reasons = {INPUTS: _input_changes(plan, last[INPUTS]), DATASET: _dataset_changes(plan, last[DATASET])}
    refitted = {
        stage.name
        for stage, transform in zip(plan.chain(transforms).stages[1:-1], transforms, strict=True)
        if isinstance(transform, FittedTransform) and transform.needs_fit
    }
    cause = ""
    chain = plan.chain(plan.recipe.transforms())
    before = {stage["name"]: stage for stage in last["stages"]}
    for stage, changes in zip(chain.stages, _own_changes(chain, last["stages"]), strict=True):
        lines = changes + ([f"the stage {cause} has changed"] if cause and not changes else [])
        lines += ["it is fitted again"] if stage.name in refitted else []
        cause = cause or (stage.name if lines else "")
        if states[stage.name].computed:
            reasons[stage.name] = lines or [_unstored(stage, before[stage.name]["cost"])]
    return Explanation(dataset, states, reasons)


def stages_to_remember(plan: PreparePlan, costs: Mapping[str, StageCost]) -> list[Parts]:
    """Return the stages of a finished preparation, for the next explanation.

    Args:
        plan: The plan.
        costs: What the stages took that were computed. The others have the costs of an earlier preparation.
    """
    stages = _plain(plan.chain(plan.recipe.transforms()))
    before = {stage["name"]: stage for stage in (plan.last() or {"stages": []})["stages"]}
    for stage in stages:
        old = before.get(stage["name"])
        stage["cost"] = old["cost"] if old and old["parts"] == stage["parts"] else None
        if stage["name"] in costs:
            stage["cost"] = asdict(costs[stage["name"]])
    return stages


def _states(plan: PreparePlan, chain: StageChain, units: Sequence[InputPiece]) -> dict[str, StageState]:
    cached, computed, pieces = [0] * len(chain.stages), [0] * len(chain.stages), 0
    for unit in units:
        numbers = [unit.piece] if unit.piece is not None else range(stream_pieces(plan.cache, chain, unit.source) or 1)
        for number in numbers:
            pieces += 1
            keys = chain.keys(unit.source.sha256, number)
            exists = [plan.cache.has(stage.group, key) for stage, key in zip(chain.stages, keys, strict=True)]
            first = max((place + 1 for place, exist in enumerate(exists) if exist), default=0)
            for place, exist in enumerate(exists):
                cached[place] += exist
                computed[place] += place >= first
    return {stage.name: StageState(pieces, cached[place], computed[place]) for place, stage in enumerate(chain.stages)}


def _plain(chain: StageChain) -> list[Parts]:
    """Return names, code and settings of stages as JSON gives them back."""
    stages: list[Parts] = json.loads(json.dumps([{"name": s.name, "parts": s.parts} for s in chain.stages]))
    return stages


def _own_changes(chain: StageChain, last: list[Parts]) -> list[list[str]]:
    """Return for each stage what changed in itself or in its place since the last preparation."""
    before = {stage["name"]: stage["parts"] for stage in last}
    after = {second["name"]: first["name"] for first, second in pairwise(last)}
    changes, previous = [], ""
    for stage in _plain(chain):
        name = stage["name"]
        if name not in before:
            changes.append(["it is new"])
        else:
            lines = differences(before[name], stage["parts"])
            moved = after.get(name, "") != previous
            changes.append([*lines, f"it comes after {previous} now, not after {after[name]}"] if moved else lines)
        previous = name
    return changes


def _unstored(stage: Stage, cost: dict[str, Any] | None) -> str:
    """Return why an unchanged stage is not in the cache."""
    if stage.keep == "never":
        return "it is not stored: prepare.keep is never"
    if cost is None or cost["stored"] == 1:
        return "inputs are new, or the cache was pruned or moved"
    subject = "it is" if not cost["stored"] else "most pieces are" if cost["stored"] < 0.5 else "some pieces are"
    work, write_and_read = _milliseconds(cost["seconds"]), _milliseconds(cost["storage_seconds"])
    size = f"{cost['bytes'] / 1e6:.3g} MB"
    return f"{subject} not stored: {work} of work per piece; to write and read {size} takes {write_and_read}"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


def _input_changes(plan: PreparePlan, before: Sequence[str]) -> list[str]:
    old, new = set(before), {source.sha256: source.location for source in plan.sources}
    missing = len(old - new.keys())
    lines = [
        f"{storage.mask_secrets(location)} is new or changed" for digest, location in new.items() if digest not in old
    ]
    return lines + ([f"{missing} inputs of the last preparation are missing or changed"] if missing else [])


def _dataset_changes(plan: PreparePlan, before: Parts) -> list[str]:
    """Return changes of how events are split and stored. Files are named; files that are missing are already
    reported."""
    lines = differences(before, plan.identity[DATASET])
    for source in plan.sources:
        lines = [line.replace(source.sha256, source.location) for line in lines]
    return [line for line in lines if not re.match(r"split\.[0-9a-f]{64}:", line)]
