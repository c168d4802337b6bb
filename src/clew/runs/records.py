"""Append-only records: one JSON object per line, numbered per stream, so that each can be sent exactly once.

A stream is a file with one writer: `rank-0.jsonl`, `rank-1.jsonl`, ..., `evaluate.jsonl`. Every record has `seq`
(0, 1, 2, ... within its stream, also across restarts), `time` (seconds since 1970) and `kind`. `KINDS` lists the other
required fields of each kind. The first record of a stream also has `uid`, a random identifier of the run. A crash can
cut the last line: readers ignore it, and the next writer removes it.
"""

from __future__ import annotations

import json
import math
import os
import re
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

from clew.core.format_version import check_format_version
from clew.errors import ClewError, InterruptError, RunError, StoppedError
from clew.runs.times import TIMED_KINDS, TimeTotals, time_totals
from clew.storage.locations import mask_secrets

Record: TypeAlias = dict[str, Any]
_END_STATUS = {InterruptError: "interrupted", KeyboardInterrupt: "interrupted", StoppedError: "stopped"}

SCHEMA = 1
"""Version of records. It changes when an older clew could not read new records."""
KINDS: dict[str, frozenset[str]] = {
    "start": frozenset({"schema", "host", "pid", "rank", "ranks"}),
    "plan": frozenset({"epochs", "steps", "samples", "parameters", "device"}),
    "load": frozenset({"seconds"}),
    "step": frozenset({"epoch", "step", "samples", "loss", "seconds", "wait", "communicate"}),
    "validation": frozenset({"epoch", "step", "metrics", "seconds"}),
    "workers": frozenset({"epoch", "step", "workers", "staleness", "bytes", "returned"}),
    "note": frozenset({"message"}),
    "output": frozenset({"message"}),
    "batch_size": frozenset({"chosen", "tried", "seconds"}),
    "usage": frozenset({"cpu", "memory", "energy"}),
    "resume": frozenset({"epoch", "step", "file", "damaged"}),
    "checkpoint": frozenset({"epoch", "step", "file"}),
    "evaluation": frozenset({"name", "data", "events", "metrics", "seconds", "checkpoint"}),
    "end": frozenset({"status", "message"}),
}

_STEP_KINDS = ("step", "validation", "checkpoint")
BLOCK = 1 << 14
"""Bytes read at a time from the end of a stream; about sixty records."""
_LINE_START = re.compile(rb'\{"seq": \d+, "time": [^,]+, "kind": "(\w+)"')
"""Start of a line as `RecordWriter` writes it; lets readers skip other kinds without parsing them."""


def end_facts(error: BaseException) -> dict[str, Any]:
    """Return the fields of the `end` record of a rank that an error ends."""
    message = "interrupted (Ctrl-C)" if isinstance(error, KeyboardInterrupt) else str(error)
    kind = type(error)
    return {
        "status": _END_STATUS.get(kind, "failed"),
        "message": message or kind.__name__,
        "error": kind.__name__,
        **(error.facts if isinstance(error, ClewError) else {}),
    }


class RecordWriter:
    """Appends records to one stream. Each record is passed to the operating system before `write` returns.

    Steps and validations get the field `times`, the times of the run so far (`times.RunTimes`). Not thread-safe.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._seq = path, _repair(path)
        self._totals = None if self._seq else TimeTotals()
        """The times so far; None if they must be read from the file."""
        self.listeners: list[Callable[[Record], None]] = []
        """Called with every record after it was written."""
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o644)

    def write(self, kind: str, **facts: Any) -> None:
        """Append one record. NaN and infinity become null; secrets in `message` become ***.

        Args:
            kind: A key of `KINDS`.
            **facts: The fields of the record.
        """
        missing = KINDS[kind] - facts.keys()
        assert not missing, f"a {kind} record needs {missing}"
        if "message" in facts:
            facts["message"] = mask_secrets(str(facts["message"]))
        record = {"seq": self._seq, "time": round(time.time(), 6), "kind": kind, **facts}
        if self._seq == 0:
            record["uid"] = secrets.token_hex(8)
        self._add_times(record)
        try:
            line = json.dumps(record, allow_nan=False)
        except ValueError:
            record = finite(record)
            line = json.dumps(record, allow_nan=False)
        os.write(self._file, (line + "\n").encode())
        self._seq += 1
        for listener in self.listeners:
            listener(record)

    def _add_times(self, record: Record) -> None:
        """Count the record's times, and add the field `times` if the record has one."""
        if record["kind"] == "resume":
            self._totals = None  # the steps that will be repeated count no more
        elif self._totals is not None:
            self._totals.update(record)
        elif record["kind"] in TIMED_KINDS:
            self._totals = time_totals([*current_records(read(self._path)), record])
        if record["kind"] in TIMED_KINDS and self._totals is not None:
            record["times"] = self._totals.facts(record)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read(path: Path, *, after: int = -1) -> Iterator[Record]:
    """The records of a stream with `seq` greater than `after`. An incomplete last line is ignored.

    Raises:
        RunError: A line in the middle is damaged, or a newer clew wrote the stream.
    """
    with path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                record = json.loads(line)
                is_new = record["seq"] > after
            except (ValueError, TypeError, KeyError) as error:
                raise RunError(f"{path}:{number}: damaged record ({error})") from error
            if is_new:
                _check_schema(path, record)
                yield record


def current_records(stream: Iterable[Record]) -> list[Record]:
    """Return the records of a stream without those of steps that a resumed run repeated."""
    history: list[Record] = []
    for record in stream:
        if record["kind"] == "resume":
            history = [each for each in history if each["kind"] not in _STEP_KINDS or each["step"] <= record["step"]]
        history.append(record)
    return history


def read_reversed(path: Path, kinds: Collection[str] | None = None) -> Iterator[Record]:
    """The records of a stream, newest first, optionally of some kinds only. An incomplete last line is ignored.

    Reads only the part of the file that the caller consumes.

    Raises:
        RunError: A line in that part is damaged, or a newer clew wrote it.
    """
    for line in _reversed_lines(path, None if kinds is None else [f'"{kind}"'.encode() for kind in kinds]):
        kind = _LINE_START.match(line)
        if kinds is not None and kind is not None and kind[1].decode() not in kinds:
            continue
        try:
            record = json.loads(line)
            selected = record["seq"] >= 0 and (kinds is None or record["kind"] in kinds)
        except (ValueError, TypeError, KeyError) as error:
            raise RunError(f"{path}: damaged record ({error}) in {line[:40]!r}") from error
        if selected:
            _check_schema(path, record)
            yield record


def _check_schema(path: Path, record: Record) -> None:
    """Refuse records of a newer clew: the record of a start has their version."""
    if record.get("kind") == "start":
        check_format_version(path, record.get("schema"), SCHEMA, RunError, "schema")


def _reversed_lines(path: Path, patterns: list[bytes] | None) -> Iterator[bytes]:
    """The complete lines of a file, last first. Blocks that contain none of `patterns` are skipped."""
    rest: bytes | None = None
    """The end of a line whose start is in an earlier block; None until the last line break was found."""
    with path.open("rb") as stream:
        position = stream.seek(0, os.SEEK_END)
        while position > 0:
            size = min(BLOCK, position)
            position = stream.seek(position - size)
            block = stream.read(size)
            if rest is None:
                block, line_break, _ = block.rpartition(b"\n")  # after it is nothing, or a line cut by a crash
                if not line_break:
                    continue
            block += rest or b""
            if patterns is None or any(word in block for word in patterns):
                rest, *lines = block.split(b"\n")
                yield from reversed(lines)
            else:
                rest = block.partition(b"\n")[0]
    if rest:
        yield rest


def _repair(path: Path) -> int:
    """Remove a half-written last line and return the next sequence number."""
    if not path.exists():
        return 0
    data = path.read_bytes()
    complete = data.rfind(b"\n") + 1
    if complete < len(data):
        os.truncate(path, complete)
    return data[:complete].count(b"\n")


def finite(value: Any) -> Any:
    """A copy of `value` with None instead of NaN and infinity, which JSON cannot hold."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: finite(inner) for name, inner in value.items()}
    return [finite(inner) for inner in value] if isinstance(value, (list, tuple)) else value
