"""Changes of bytes and of JSON that damaged files and hostile authors make. All are decided by a random generator."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

_EXTREME = (0, 1, -1, 2**7, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**63 - 1, -(2**63))
_ODD_VALUES: tuple[Any, ...] = (
    *(None, True, "", "x" * 5000, "\x00", "../../etc/passwd", "1e999", 0, -1, 2**63, 10**30, 1e308, -0.0),
    *([], {}, [[]], {"a": {"b": []}}, [1, "two", None], "NaN", "\ud800"),
)


def changed_bytes(random: random.Random, data: bytes) -> bytes:
    """Return the bytes after one to four changes: cut, flipped, overwritten, inserted, removed, repeated."""
    for _ in range(random.choice((1, 1, 2, 4))):
        data = random.choice(_CHANGES)(random, data)
    return data


def changed_json(random: random.Random, data: bytes) -> bytes:
    """Return JSON with a value, a name or an item changed; the result is JSON of another shape."""
    document = json.loads(data)
    for _ in range(random.choice((1, 1, 2))):
        document = _changed_value(random, document)
    return json.dumps(document).encode("utf-8", errors="replace")


def nested(random: random.Random) -> bytes:
    """Return deep brackets, which parsers that call themselves cannot read."""
    return random.choice((b"[", b'{"a":', b"- ", b"(")) * random.choice((100, 5_000, 100_000))


def _changed_value(random: random.Random, value: Any) -> Any:
    if isinstance(value, dict) and value and random.random() < 0.85:
        name = random.choice(list(value))
        if random.random() < 0.1:
            return {key: each for key, each in value.items() if key != name}
        return {**value, name: _changed_value(random, value[name])}
    if isinstance(value, list) and value and random.random() < 0.85:
        place = random.randrange(len(value))
        return [*value[:place], _changed_value(random, value[place]), *value[place + 1 :]]
    return random.choice(_ODD_VALUES)


def _cut(random: random.Random, data: bytes) -> bytes:
    return data[: random.randrange(len(data) + 1)]


def _flip(random: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 3, 10))):
        if changed:
            changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def _number(random: random.Random, data: bytes) -> bytes:
    """Overwrite a number: sizes, counts and positions are where readers trust a file."""
    size = random.choice((1, 2, 4, 8))
    value = (random.choice(_EXTREME) % (1 << 8 * size)).to_bytes(size, random.choice(("little", "big")))
    place = random.randrange(max(1, len(data) - size))
    return data[:place] + value + data[place + size :]


def _block(random: random.Random, data: bytes) -> bytes:
    size, place = random.choice((4, 16, 64, 512)), random.randrange(len(data) + 1)
    block = random.choice((bytes(size), b"\xff" * size, random.randbytes(size)))
    return data[:place] + block + data[place + random.choice((0, size)) :]


def _remove(random: random.Random, data: bytes) -> bytes:
    place = random.randrange(len(data) + 1)
    return data[:place] + data[place + random.choice((1, 4, 64)) :]


def _repeat(random: random.Random, data: bytes) -> bytes:
    place, size = random.randrange(len(data) + 1), random.choice((1, 16, 256))
    return data[:place] + data[place : place + size] * random.choice((2, 20)) + data[place:]


_CHANGES: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    _cut,
    _flip,
    _flip,
    _number,
    _number,
    _block,
    _remove,
    _repeat,
)
