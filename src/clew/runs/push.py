"""A run's records and files to a server, while it trains or later.

The record files are the spool: nothing is kept elsewhere, and what a server has not got is sent when it is back. The
server says which record of a stream it expects next, so that sending twice, from anywhere, stores once.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from clew.client.connection import Connection
from clew.core.files import sha256, write_text
from clew.errors import RunError, ServerError
from clew.runs.folder import Run
from clew.runs.records import Record
from clew.runs.run_trust import trust_own_run
from clew.storage import mask_secrets

_RECORDS = 2000
"""Of one request, at most."""
_BYTES = 1_000_000
_LONGEST_LOG = 50_000_000
"""Bytes of a log; a longer one is not sent."""
LOG_NAME = "log.txt"
"""What a run in the background printed, in the folder of its job."""
STUDY_FILE = "server.json"
"""In the folder of a study: its number on a server."""
TRIAL_NAME = re.compile(r"trial-(\d{4,9})(?:-|$)")
"""The name of the run of a trial."""
_FILES = {
    "report.html": "report",
    "plots/**/*": "plot",
    "checkpoints/*.safetensors": "checkpoint",
    "trace/*.trace": "file",
    "artefacts/*": "file",
    "dataset.json": "file",
    "code/**/*": "file",
}
"""Files that a server stores when a run has ended: with them `clew runs get` restores the folder. States to
resume from are not among them."""


@dataclass
class _Tail:
    """The end of a stream's file: where the next record begins."""

    path: Path
    seq: int = 0
    offset: int = 0

    def seek(self, seq: int) -> None:
        """Move to a record. The number of a record is that of its line."""
        if seq == self.seq:
            return
        self.seq = self.offset = 0
        with self.path.open("rb") as file:
            while self.seq < seq and (line := file.readline()).endswith(b"\n"):
                self.offset += len(line)
                self.seq += 1

    def read(self, limit: int, byte_limit: int) -> tuple[list[Record], int]:
        """Return the next records and their size in bytes. The position does not change; `seek` changes it."""
        records: list[Record] = []
        size = 0
        with self.path.open("rb") as file:
            file.seek(self.offset)
            while len(records) < limit and size < byte_limit and (line := file.readline()).endswith(b"\n"):
                try:
                    records.append(json.loads(line))
                except ValueError as error:
                    raise RunError(f"{self.path}:{self.seq + len(records) + 1}: damaged record ({error})") from error
                size += len(line)
        return records, size

    def passed(self, seq: int, records: int, size: int) -> None:
        """The server expects `seq` after it was sent so many records of that size."""
        if seq == self.seq + records:
            self.seq, self.offset = seq, self.offset + size
        else:
            self.seek(seq)


@dataclass
class Pusher:
    """Sends one run. `push` and `push_files` may be called any number of times; each sends what is new."""

    run: Run
    link: Connection
    group: str | None = None
    tags: tuple[str, ...] = ()
    number: int | None = None
    """The run's, on the server; None before the first `push`."""
    gone: bool = False
    """Whether the server said that it has that run no more."""
    _tails: dict[str, _Tail] = field(default_factory=dict)
    _sent: dict[str, str] | None = None
    """What the server has of the run's files: names and contents."""

    def push(self) -> int:
        """Send every record there is and the server has not; how many.

        Raises:
            ServerError: it is away, or says no. What was taken is taken.
            RunError: a record is damaged.
        """
        if self.number is None and not self._begin():
            return 0
        total = 0
        while batch := self._batch():
            streams = {name: records for name, (records, _) in batch.items()}
            answer = self.link.call("POST", f"/runs/{self.number}/records", body={"streams": streams})
            for name, (records, size) in batch.items():
                before = self._tails[name].seq
                self._tails[name].passed(answer["next"][name], len(records), size)
                if self._tails[name].seq == before:
                    raise ServerError(f"{self.link.server}: does not take record {before} of {self.run.path} {name}")
                total += len(records)
        return total

    def push_files(self) -> int:
        """Send plots, report and weights that are new or changed; how many.

        Raises:
            ServerError: it is away, or says no.
        """
        if self.number is None and not self._begin():
            return 0
        if self._sent is None:
            self._sent = {each["name"]: each["sha256"] for each in self.link.pages(f"/runs/{self.number}/artefacts")}
        trust_own_run(self.run)  # `clew runs get` may bring it back
        sent = 0
        for path, name, kind in self._files():
            content = sha256(path)
            if self._sent.get(name) != content:
                where = f"/runs/{self.number}/artefacts/{quote(name)}"
                self.link.upload(where, path, params={"kind": kind, "sha256": content})
                self._sent[name] = content
                sent += 1
        return sent

    def save_settings(self) -> None:
        """Tell the server of a run that ended without a word."""
        if self.number is not None and self.run.state == "interrupted":
            self.link.call("PATCH", f"/runs/{self.number}", body={"state": "interrupted"})

    def note(self, *, error: str = "") -> None:
        """Write down how far it is, in the run's folder."""
        places = {name: tail.seq for name, tail in sorted(self._tails.items())}
        facts = {"server": mask_secrets(self.link.server), "run": self.number, "next": places}
        facts["error"] = mask_secrets(error)
        write_text(self.run.push_file, json.dumps(facts, indent=2) + "\n")

    def _begin(self) -> bool:
        """Create or find the run on the server. Return whether the run has records."""
        uid = identity(self.run)
        if uid is None:
            return False
        for path in (self.run.config_file, self.run.environment_file, self.run.dataset_file):
            _check_inside(self.run, path)
        config = self.run.config().data
        dataset = json.loads(self.run.dataset_file.read_text())["key"] if self.run.dataset_file.exists() else None
        body: dict[str, Any] = {"uid": uid, "name": self.run.name, "recipe": str(config.get("recipe", ""))}
        body |= {"config": config, "environment": self.run.environment(), "dataset": dataset, "group": self.group}
        body |= _study_facts(self.run, mask_secrets(self.link.server))
        answer = self.link.call("POST", "/runs", body={**body, "tags": list(self.tags)})
        self.number = int(answer["id"])
        self._mark(answer)
        for path in self.run.records_folder.glob("*.jsonl"):
            self._tail(path.stem).seek(answer["next"].get(path.stem, 0))
        return True

    def _mark(self, known: Record) -> None:
        """Set the requested tags and group of a run that the server had before."""
        if not {*self.tags} <= {*known["tags"]}:
            tags = sorted({*self.tags, *known["tags"]})
            self.link.call("PUT", f"/runs/{self.number}/tags", body={"tags": tags})
        if self.group not in (None, known["group_name"]):
            self.link.call("PATCH", f"/runs/{self.number}", body={"group": self.group})

    def _tail(self, name: str) -> _Tail:
        if name not in self._tails:
            path = self.run.records_folder / f"{name}.jsonl"
            _check_inside(self.run, path)
            self._tails[name] = _Tail(path)
        return self._tails[name]

    def _batch(self) -> dict[str, tuple[list[Record], int]]:
        batch: dict[str, tuple[list[Record], int]] = {}
        records_left, bytes_left = _RECORDS, _BYTES
        for path in sorted(self.run.records_folder.glob("*.jsonl")):
            records, size = self._tail(path.stem).read(records_left, bytes_left)
            if records:
                batch[path.stem] = records, size
                records_left, bytes_left = records_left - len(records), bytes_left - size
            if records_left <= 0 or bytes_left <= 0:
                break
        return batch

    def _files(self) -> Iterator[tuple[Path, str, str]]:
        """Path, name and kind of the files of the run, and of what its process printed if it ran in the background.

        A link that leads out of the folder is left out: it could be any file of the user.
        """
        root, log = self.run.path.resolve(), self.run.job_folder / LOG_NAME
        if log.is_file() and not log.is_symlink() and log.stat().st_size <= _LONGEST_LOG:
            yield log, LOG_NAME, "log"
        for pattern, kind in _FILES.items():
            for path in sorted(self.run.path.glob(pattern)):
                if path.is_file() and not path.name.startswith(".") and root in path.resolve().parents:
                    yield path, path.relative_to(self.run.path).as_posix(), kind


def _check_inside(run: Run, path: Path) -> None:
    """Check that a file of a run is in its folder. A link could lead to any file of the user.

    Raises:
        RunError: it is not.
    """
    if run.path.resolve() not in path.resolve().parents:
        raise RunError(f"{path}: a link that leads out of the run is not sent; replace it by the file itself")


def _study_facts(run: Run, server: str) -> dict[str, int]:
    """The study and the number of the trial, if the run is a trial of a study that the server knows."""
    trial = TRIAL_NAME.match(run.path.name)
    try:
        facts = json.loads((run.path.absolute().parent.parent / STUDY_FILE).read_text()) if trial else {}
    except (OSError, ValueError):
        return {}
    if trial is None or facts.get("server") != server or not isinstance(facts.get("study"), int):
        return {}
    return {"study": facts["study"], "trial": int(trial[1])}


def identity(run: Run) -> str | None:
    """A text that identifies a run wherever its folder is copied: a hash of its first record. None without records."""
    path = run.records_folder / f"{run.main_stream}.jsonl"
    if not path.exists():
        return None
    with path.open("rb") as file:
        line = file.readline()
    return hashlib.sha256(line).hexdigest()[:32] if line.endswith(b"\n") else None


def pending(run: Run) -> int:
    """Number of records that the server does not have, according to the last push; 0 if there was none."""
    if not run.push_file.exists():
        return 0
    places = json.loads(run.push_file.read_text())["next"]
    return sum(_lines(path) - places.get(path.stem, 0) for path in run.records_folder.glob("*.jsonl"))


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n")
