"""Append-only records: one JSON object a line, numbered per stream, so that they can be shipped exactly once.

A stream is a file with one writer: `rank-0.jsonl`, `rank-1.jsonl`, ..., `evaluate.jsonl`. Every record has `seq`
(0, 1, 2, ... within its stream, also across restarts), `time` (seconds since 1970) and `kind`; `KINDS` says what
each kind must hold besides. The first of a stream has `uid` too, a random word: no two runs begin alike, even in the
same microsecond. A crash can cut the last line: readers leave it out, the next writer removes it.
"""

from __future__ import annotations

import json
import math
import os
import re
import secrets
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, TypeAlias

from clew.errors import RunError
from clew.storage.locations import mask_secrets

Record: TypeAlias = dict[str, Any]

SCHEMA = 1
KINDS: dict[str, frozenset[str]] = {
    "start": frozenset({"schema", "host", "pid", "rank", "ranks"}),
    "plan": frozenset({"epochs", "steps", "samples", "parameters", "device"}),
    "step": frozenset({"epoch", "step", "samples", "loss", "seconds", "wait", "communicate"}),
    "validation": frozenset({"epoch", "step", "metrics", "seconds"}),
    "workers": frozenset({"epoch", "step", "workers", "staleness", "bytes", "returned"}),
    "note": frozenset({"message"}),
    "batch_size": frozenset({"chosen", "tried", "seconds"}),
    "usage": frozenset({"cpu", "memory", "energy"}),
    "resume": frozenset({"epoch", "step", "file", "damaged"}),
    "checkpoint": frozenset({"epoch", "step", "file"}),
    "evaluation": frozenset({"name", "data", "events", "metrics", "seconds", "checkpoint"}),
    "end": frozenset({"status", "message"}),
}

_BLOCK = 1 << 14
"""Bytes read at a time from the end of a stream: some sixty records."""
_BEGINNING = re.compile(rb'\{"seq": \d+, "time": [^,]+, "kind": "(\w+)"')
"""How `Writer` begins a line: enough to pass over records nobody asked for without parsing them."""


class Writer:
    """Appends records to one stream; each is on its way to disk when `write` returns. Not for several threads."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._seq = _repair(path)
        self.listeners: list[Callable[[Record], None]] = []
        """Told of every record once it is written."""
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, kind: str, **facts: Any) -> None:
        """Append one record. NaN and infinity are written as null, which JSON can hold; secrets in a message as ***."""
        missing = KINDS[kind] - facts.keys()
        assert not missing, f"a {kind} record needs {missing}"
        if "message" in facts:
            facts["message"] = mask_secrets(str(facts["message"]))
        record = {"seq": self._seq, "time": round(time.time(), 6), "kind": kind, **facts}
        if self._seq == 0:
            record["uid"] = secrets.token_hex(8)
        try:
            line = json.dumps(record, allow_nan=False)
        except ValueError:
            record = finite(record)
            line = json.dumps(record, allow_nan=False)
        os.write(self._file, (line + "\n").encode())
        self._seq += 1
        for tell in self.listeners:
            tell(record)

    def close(self) -> None:
        """Give the file back; further writes are an error."""
        os.close(self._file)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read(path: Path, *, after: int = -1) -> Iterator[Record]:
    """The records of a stream with `seq` greater than `after`; a line cut by a crash at the end is left out.

    Raises:
        RunError: a line in the middle is damaged.
    """
    with path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                record = json.loads(line)
                late = record["seq"] > after
            except (ValueError, TypeError, KeyError) as error:
                raise RunError(f"{path}:{number}: damaged record ({error})") from error
            if late:
                yield record


def read_back(path: Path, kinds: Collection[str] | None = None) -> Iterator[Record]:
    """The records of a stream (of some kinds), newest first; reads only as far back as the caller asks.

    A line cut by a crash at the end is left out.

    Raises:
        RunError: a line on the way is damaged.
    """
    for line in _lines_back(path, None if kinds is None else [f'"{kind}"'.encode() for kind in kinds]):
        kind = _BEGINNING.match(line)
        if kinds is not None and kind is not None and kind[1].decode() not in kinds:
            continue
        try:
            record = json.loads(line)
            wanted = record["seq"] >= 0 and (kinds is None or record["kind"] in kinds)
        except (ValueError, TypeError, KeyError) as error:
            raise RunError(f"{path}: damaged record ({error}) in {line[:40]!r}") from error
        if wanted:
            yield record


def _lines_back(path: Path, words: list[bytes] | None) -> Iterator[bytes]:
    """The whole lines of a file, last first; blocks in which none of `words` occurs are passed over unsplit."""
    rest: bytes | None = None
    """The end of a line that begins further up; None until the last line break was found."""
    with path.open("rb") as stream:
        place = stream.seek(0, os.SEEK_END)
        while place > 0:
            size = min(_BLOCK, place)
            place = stream.seek(place - size)
            block = stream.read(size)
            if rest is None:
                block, found, _ = block.rpartition(b"\n")  # behind it is nothing, or a line cut by a crash
                if not found:
                    continue
            block += rest or b""
            if words is None or any(word in block for word in words):
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
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        os.truncate(path, whole)
    return data[:whole].count(b"\n")


def finite(value: Any) -> Any:
    """The same with null where JSON has no number: NaN and infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: finite(inner) for name, inner in value.items()}
    return [finite(inner) for inner in value] if isinstance(value, (list, tuple)) else value
