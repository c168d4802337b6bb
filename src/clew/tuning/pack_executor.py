"""Trials in packs: many small models trained at once in one process, each of them a run with a lease of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from clew.core.files import write_text
from clew.jobs.launchers.batching import PackLauncher
from clew.jobs.launchers.launcher import LaunchedJob, Launcher, Slot, find_launcher
from clew.jobs.task import TrainTask
from clew.tuning.executor import TaskEnd, TaskReport
from clew.tuning.folder import StudyFolder
from clew.tuning.job_executor import JobExecutor
from clew.tuning.space import Template

_ON_PROCESSOR, _ON_DEVICE = 16, 256
"""Models of a pack, where nobody says how many."""
_VARY = (
    *(f"train.optimizer.{name}" for name in ("lr", "weight_decay", "parameters", "lr_batch", "lr_rule")),
    *(f"train.{name}" for name in ("schedule", "clip", "seed", "best", "early_stopping", "target")),
)
"""Settings of train that may differ within a pack."""


class PackExecutor(JobExecutor):
    """As `JobExecutor`, but pieces are gathered and begun together, a pack a room. A room takes new ones when the last
    model of its pack has ended: a pack gets smaller as trials are pruned, and so faster."""

    def __init__(
        self, folder: StudyFolder, template: Template, rooms: Sequence[Slot], launcher: Launcher | None = None
    ) -> None:
        assert template.tune is not None and template.tune.packed is not None, "a study of packs"
        device = any(room.devices for room in rooms)
        wanted = template.tune.packed
        self._size = (_ON_DEVICE if device else _ON_PROCESSOR) if wanted == "auto" else wanted
        self._packs = PackLauncher(rooms, self._size, launcher or find_launcher("warm"), self._key)
        super().__init__(folder, template, [room for room in rooms for _ in range(self._size)], self._packs)

    def room(self) -> int:
        idle = len(self._packs.slots) - len(self._busy())
        return max(0, min(len(self._free), self._size * idle - len(self._packs.collected)))

    def poll(self) -> Iterator[TaskReport | TaskEnd]:
        if self._packs.collected:
            self._packs.start_packs(self._busy())
        yield from super().poll()

    def _key(self, task: TrainTask) -> str:
        """What trials of a pack have alike, as far as their values tell."""
        resumed = task.resume is not None
        piece = self._active[Path(task.resume or task.output or "").name].piece
        alike = {key: value for key, value in piece.values.items() if not _varies(key, value)}
        return json.dumps([resumed, piece.fold, alike], sort_keys=True, default=str)

    def _write(self, file: Path, data: Mapping[str, Any]) -> None:
        write_text(file, json.dumps(data))  # JSON is YAML, and a pack reads it much sooner

    def _busy(self) -> set[str]:
        """The folders of packs of which something still runs."""
        jobs = [attempt.job for attempt in self._active.values() if attempt.job is not None]
        found = {self._packs.pack(job) for job in jobs if job.launcher == PackLauncher.name}
        return {pack.folder for pack in found if pack is not None}

    def _of(self, job: LaunchedJob) -> Launcher:
        return self._packs if job.launcher == PackLauncher.name else super()._of(job)


def _varies(key: str, value: Any) -> bool:
    """Whether a value may be another for every model of a pack."""
    if key.startswith("train."):
        return any(key == name or key.startswith(f"{name}.") for name in _VARY)
    return type(value) is float
