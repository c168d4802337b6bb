"""Trainings of one kind, collected and started together: one job trains many runs.

`start` only collects; `start_packs` starts a job in every idle slot. Each training has a folder with a record of its
own end, so other code handles it as a job like any other.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict
from pathlib import Path

from clew.core.files import write_text
from clew.errors import RunError
from clew.jobs.launchers.launcher import JobState, LaunchedJob, Launcher, Slot, Supervision, state_of_end
from clew.jobs.launchers.local import LocalLauncher
from clew.jobs.supervisor import JobEnd, log_file, read_end, write_end
from clew.jobs.task import PackedTraining, PackTask, Task, TrainTask

_PACK_FILE = "pack.json"
"""In the folder of a training: the job that runs it."""
_LOOK_PAUSE = 0.2
"""Seconds between two looks at a pack."""


class PackLauncher:
    """A launcher of runs that are trained together."""

    name = "packs"

    def __init__(
        self,
        slots: Sequence[Slot] = (),
        size: int = 1,
        launcher: Launcher | None = None,
        key: Callable[[TrainTask], str] = lambda task: "",
    ) -> None:
        """Args:
        slots: The parts of the machine; each runs one pack at a time.
        size: The largest number of trainings in a pack.
        launcher: It starts the packs.
        key: Trainings with the same key can share a pack.
        """
        self.slots, self._size, self._launcher, self._key = list(slots), size, launcher or LocalLauncher(), key
        self.collected: list[tuple[LaunchedJob, TrainTask]] = []
        """Trainings that wait to be started."""
        self._slot_numbers: dict[str, int] = {}
        """The slot of every pack that was started here, by folder."""
        self._packs: dict[str, LaunchedJob] = {}
        self._states: dict[str, tuple[float, JobState]] = {}

    def start(
        self, task: Task, *, folder: Path, slot: Slot | None = None, supervision: Supervision | None = None
    ) -> LaunchedJob:
        if not isinstance(task, TrainTask):
            raise RunError(f"{folder}: only trainings can be packed, not tasks of kind '{task.kind}'")
        folder.mkdir(parents=True)
        job = LaunchedJob(self.name, folder.name, str(folder))
        self.collected.append((job, task))
        return job

    def start_packs(self, busy: AbstractSet[str]) -> None:
        """Distribute the collected trainings over the slots where no pack runs; `busy` are the folders of packs."""
        ordered = sorted(self.collected, key=lambda member: self._key(member[1]))
        self.collected = []
        slots = self._idle_slots(busy) or [0]
        size = max(1, min(self._size, -(-len(ordered) // len(slots))))
        for number, first in enumerate(range(0, len(ordered), size)):
            self._start_pack(ordered[first : first + size], slots[number % len(slots)])

    def _idle_slots(self, busy: AbstractSet[str]) -> list[int]:
        taken = {self._slot_numbers[folder] for folder in busy if folder in self._slot_numbers}
        free = [number for number in range(len(self.slots)) if number not in taken]
        return free[len([folder for folder in busy if folder not in self._slot_numbers]) :]  # an earlier coordinator's

    def _start_pack(self, members: Sequence[tuple[LaunchedJob, TrainTask]], slot: int) -> None:
        root = Path(members[0][0].folder).parent
        number = next(n for n in range(1, 1 << 30) if not (root / f"pack-{n:04d}").exists())
        task = PackTask(members=tuple(PackedTraining(folder=job.folder, task=task) for job, task in members))
        pack = self._launcher.start(task, folder=root / f"pack-{number:04d}", slot=self.slots[slot])
        self._slot_numbers[pack.folder] = slot
        for job, _ in members:
            write_text(Path(job.folder) / _PACK_FILE, json.dumps(asdict(pack)))

    def pack(self, job: LaunchedJob) -> LaunchedJob | None:
        """The job that runs a training; None before it was started."""
        if job.folder not in self._packs:
            try:
                data = json.loads((Path(job.folder) / _PACK_FILE).read_text())
            except FileNotFoundError:
                return None
            self._packs[job.folder] = LaunchedJob(**data)
        return self._packs[job.folder]

    def state(self, job: LaunchedJob) -> JobState:
        end = read_end(Path(job.folder))
        pack = self.pack(job) if end is None else None
        if end is None and pack is None:
            return "waiting" if any(each.folder == job.folder for each, _ in self.collected) else "lost"
        if pack is not None:
            state = self._pack_state(pack)
            if state in ("waiting", "running"):
                return state
            end = read_end(Path(job.folder)) or self._end_with_pack(job, pack)
        return "lost" if end is None else state_of_end(end.code)

    def _end_with_pack(self, job: LaunchedJob, pack: LaunchedJob) -> JobEnd | None:
        """Record the end of a training that ended because its pack did."""
        end = read_end(Path(pack.folder))
        if end is not None:
            text = pack.log.read_text(errors="replace") if pack.log.exists() else ""
            write_text(log_file(Path(job.folder)), text)
            write_end(Path(job.folder), end)
        return end

    def _pack_state(self, pack: LaunchedJob) -> JobState:
        """Its state, looked up a few times per second and not for every run in it."""
        looked, state = self._states.get(pack.folder, (0.0, "waiting"))
        if time.monotonic() - looked > _LOOK_PAUSE:
            state = self._launcher.state(pack)
            self._states[pack.folder] = time.monotonic(), state
        return state

    def end(self, job: LaunchedJob) -> JobEnd | None:
        return read_end(Path(job.folder))

    def explain(self, job: LaunchedJob) -> str:
        return ""

    def stop(self, job: LaunchedJob) -> None:
        pack = self.pack(job)
        if pack is not None:
            self._launcher.stop(pack)

    def kill(self, job: LaunchedJob) -> None:
        pack = self.pack(job)
        if pack is not None:
            self._launcher.kill(pack)
