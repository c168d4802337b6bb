"""Commands of a kind gathered and begun together: one job trains many runs.

`start` only gathers; `begin` starts a job for every idle room. Each command has a folder with an exit code of its own,
so to others it is a job like any other.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict
from pathlib import Path

from clew.core.files import write_text
from clew.jobs.launchers.launcher import JobState, LaunchedJob, Launcher, Slot
from clew.jobs.launchers.local import LocalLauncher, exit_file

_ENDS: dict[str, JobState] = {"0": "finished", "75": "stopped"}
_PACK = "pack.json"
"""In the folder of a command: the job that does it."""
_LOOK = 0.2
"""Seconds between two looks at a pack."""


class PackLauncher:
    """A launcher of runs that are trained together. `key` says of a command what it can share a pack with."""

    def __init__(
        self,
        rooms: Sequence[Slot] = (),
        size: int = 1,
        launcher: Launcher | None = None,
        key: Callable[[Sequence[str]], str] = lambda arguments: "",
    ) -> None:
        self.rooms, self._size, self._launcher, self._key = list(rooms), size, launcher or LocalLauncher(), key
        self.gathered: list[tuple[LaunchedJob, list[str]]] = []
        """What waits to be begun."""
        self._places: dict[str, int] = {}
        """The room of every pack that was begun here, by folder."""
        self._known: dict[str, LaunchedJob] = {}
        self._states: dict[str, tuple[float, JobState]] = {}

    def start(self, arguments: Sequence[str], *, folder: Path, room: Slot | None = None) -> LaunchedJob:
        folder.mkdir(parents=True)
        job = LaunchedJob("packs", folder.name, str(folder))
        self.gathered.append((job, list(arguments)))
        return job

    def begin(self, busy: AbstractSet[str]) -> None:
        """Deal what was gathered to the rooms where no pack runs, alike to alike; `busy` are the folders of packs."""
        ordered = sorted(self.gathered, key=lambda each: self._key(each[1]))
        self.gathered = []
        rooms = self._idle(busy) or [0]
        each = max(1, min(self._size, -(-len(ordered) // len(rooms))))
        for place, first in enumerate(range(0, len(ordered), each)):
            self._begin(ordered[first : first + each], rooms[place % len(rooms)])

    def _idle(self, busy: AbstractSet[str]) -> list[int]:
        taken = {self._places[folder] for folder in busy if folder in self._places}
        free = [place for place in range(len(self.rooms)) if place not in taken]
        return free[len([folder for folder in busy if folder not in self._places]) :]  # of a coordinator before us

    def _begin(self, members: Sequence[tuple[LaunchedJob, list[str]]], place: int) -> None:
        root = Path(members[0][0].folder).parent
        number = next(n for n in range(1, 1 << 30) if not (root / f"pack-{n:04d}").exists())
        folder, file = root / f"pack-{number:04d}", root / f"pack-{number:04d}.json"
        told = [{"folder": job.folder, "arguments": arguments} for job, arguments in members]
        write_text(file, json.dumps(told, indent=1))
        job = self._launcher.start(["train", "--pack", str(file)], folder=folder, room=self.rooms[place])
        self._places[job.folder] = place
        for each, _ in members:
            write_text(Path(each.folder) / _PACK, json.dumps(asdict(job)))

    def pack(self, job: LaunchedJob) -> LaunchedJob | None:
        """The job that does a command, once there is one."""
        if job.folder not in self._known:
            try:
                found = json.loads((Path(job.folder) / _PACK).read_text())
            except FileNotFoundError:
                return None
            self._known[job.folder] = LaunchedJob(**found)
        return self._known[job.folder]

    def state(self, job: LaunchedJob) -> JobState:
        own = exit_file(Path(job.folder))
        if own.exists():
            return _ENDS.get(own.read_text().strip(), "failed")
        pack = self.pack(job)
        if pack is None:
            return "waiting" if any(each.folder == job.folder for each, _ in self.gathered) else "lost"
        found = self._of_pack(pack)
        if found in ("waiting", "running"):
            return found
        if not own.exists():  # it went with its pack
            whole = exit_file(Path(pack.folder))
            if not whole.exists():
                return "lost"
            write_text(Path(job.folder) / "log.txt", pack.log.read_text(errors="replace") if pack.log.exists() else "")
            write_text(own, whole.read_text())
        return _ENDS.get(own.read_text().strip(), "failed")

    def _of_pack(self, pack: LaunchedJob) -> JobState:
        """Its state, asked for a few times a second, not for every run in it."""
        when, found = self._states.get(pack.folder, (0.0, "waiting"))
        if time.monotonic() - when > _LOOK:
            found = self._launcher.state(pack)
            self._states[pack.folder] = time.monotonic(), found
        return found

    def stop(self, job: LaunchedJob) -> None:
        pack = self.pack(job)
        if pack is not None:
            self._launcher.stop(pack)

    def kill(self, job: LaunchedJob) -> None:
        pack = self.pack(job)
        if pack is not None:
            self._launcher.kill(pack)
