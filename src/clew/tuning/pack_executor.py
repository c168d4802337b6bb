"""Trials in packs: one process trains many small models together. Each model is a run with its own lease."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from clew.core.files import write_text
from clew.jobs.launchers.batching import PackLauncher
from clew.jobs.launchers.launcher import Launcher, Slot, find_launcher
from clew.jobs.task import TrainTask
from clew.tuning.executor import TaskEnd, TaskReport
from clew.tuning.folder import StudyFolder
from clew.tuning.job_executor import JobExecutor
from clew.tuning.space import Template

_ON_PROCESSOR, _ON_DEVICE = 16, 256
"""Default number of models per pack."""
_MAY_DIFFER = (
    *(f"train.optimizer.{name}" for name in ("lr", "weight_decay", "parameters", "lr_batch", "lr_rule")),
    *(f"train.{name}" for name in ("schedule", "clip", "seed", "best", "early_stopping", "target")),
)
"""Settings of `train` that may differ between the models of a pack."""


class PackExecutor(JobExecutor):
    """A `JobExecutor` that collects tasks and starts them together, one pack per slot.

    A slot takes new tasks when the last model of its pack has ended. A pack becomes smaller, and so faster, as trials
    are pruned.
    """

    def __init__(
        self, folder: StudyFolder, template: Template, slots: Sequence[Slot], launcher: Launcher | None = None
    ) -> None:
        assert template.tune is not None and template.tune.packed is not None, "a study of packs"
        device = any(slot.devices for slot in slots)
        size = template.tune.packed
        self._size = (_ON_DEVICE if device else _ON_PROCESSOR) if size == "auto" else size
        self._packs = PackLauncher(slots, self._size, launcher or find_launcher("warm"), self._key)
        super().__init__(folder, template, [slot for slot in slots for _ in range(self._size)], self._packs)

    def capacity(self) -> int:
        idle = len(self._packs.slots) - len(self._busy())
        return max(0, min(len(self._free), self._size * idle - len(self._packs.collected)))

    def poll(self) -> Iterator[TaskReport | TaskEnd]:
        if self._packs.collected:
            self._packs.start_packs(self._busy())
        yield from super().poll()

    def _key(self, training: TrainTask) -> str:
        """Return what the trials of a pack must have in common, as text."""
        resumed = training.resume is not None
        task = self._active[Path(training.resume or training.output or "").name].task
        common = {key: value for key, value in task.values.items() if not _may_differ(key, value)}
        return json.dumps([resumed, task.fold, common], sort_keys=True, default=str)

    def _write(self, file: Path, data: Mapping[str, Any]) -> None:
        write_text(file, json.dumps(data))  # JSON is valid YAML and much faster to read

    def _busy(self) -> set[str]:
        """Return the folders of packs with running models."""
        jobs = [attempt.job for attempt in self._active.values() if attempt.job is not None]
        packs = {self._packs.pack(job) for job in jobs if self._launcher_of(job) is self._packs}
        return {pack.folder for pack in packs if pack is not None}


def _may_differ(key: str, value: Any) -> bool:
    """Return whether the models of a pack may have different values of a setting."""
    if key.startswith("train."):
        return any(key == name or key.startswith(f"{name}.") for name in _MAY_DIFFER)
    return type(value) is float
