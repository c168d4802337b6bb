"""Which curves are drawn together."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_SYSTEM = ("speed", "usage")
"""What stands before the slash of metrics that tell of machines, not of learning."""
_RANK = re.compile(r"@\d+$")
SPEED, WAIT, TALK = "speed/samples_per_second", "speed/wait", "speed/communicate"
_READABLE = 6
"""Curves in one plot."""
_TITLES = {
    SPEED: ("Speed", "samples/s"),
    WAIT: ("Waiting for data", "share of the time"),
    TALK: ("Communication", "share of the time"),
    "usage/cpu": ("Cores in use", ""),
    "usage/memory": ("Memory", "bytes"),
    "usage/energy": ("Energy", "J"),
    "usage/power": ("Power", "W"),
    "usage/device": ("Device", "share of the time"),
    "usage/device_memory": ("Memory of the device", "bytes"),
}


def of_learning(known: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Losses together, metrics that are shares together, every other one alone."""
    names = [name for name in known if not is_system(name)]
    losses = [name for name in names if _last(name) == "loss" or (name.startswith("train/") and not is_rate(name))]
    rest = [name for name in names if name not in losses]
    shares = [name for name in rest if name.startswith("val/") and _is_share(known[name])]
    found = [{"title": "Loss", "names": losses, "log": True}] if losses else []
    found += [{"title": name, "names": some, "log": False} for name, some in _families(shares)]
    single = [name for name in rest if name not in shares]
    return found + [{"title": title(name)[0], "names": [name], "log": _wide(name, known[name])} for name in single]


def _families(shares: list[str]) -> Iterator[tuple[str, list[str]]]:
    """All in one plot while it can be read; of more, those that begin with the same word are plotted apart."""
    if len(shares) <= _READABLE:
        yield from _shared("Validation", shares)
        return
    words: dict[str, list[str]] = {}
    for name in shares:
        words.setdefault(_last(name).partition("_")[0], []).append(name)
    rest = [name for some in words.values() if len(some) == 1 for name in some]
    yield from _shared("Validation", rest)
    for word, some in words.items():
        if len(some) > 1:
            yield from _shared(f"Validation: {word}", some)


def _shared(called: str, names: list[str]) -> Iterator[tuple[str, list[str]]]:
    """In as few plots as can be read, evenly."""
    plots = -(-len(names) // _READABLE)
    for number in range(plots):
        some = names[number * len(names) // plots : (number + 1) * len(names) // plots]
        which = f"{called}, {number + 1} of {plots}" if plots > 1 else called
        yield (title(some[0])[0] if len(some) == 1 else which), some


def of_system(known: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Speed, waiting, and what was taken from the machine; the same of several ranks together."""
    together: dict[str, list[str]] = {}
    for name in known:
        if is_system(name):
            together.setdefault(_RANK.sub("", name), []).append(name)
    order = list(_TITLES)
    found = sorted(together.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order))
    return [{"title": title(key)[0], "unit": title(key)[1], "names": names} for key, names in found]


def each_alone(names: Iterable[str], known: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A panel a metric, for several runs in one."""
    return [
        {"title": name, "names": [name], "log": _last(name) == "loss" or _wide(name, known[name])} for name in names
    ]


def title(name: str) -> tuple[str, str]:
    """What a metric is called over its curve, and its unit."""
    return _TITLES.get(name, ("Learning rate" if is_rate(name) else name.replace("_", " "), ""))


def is_system(name: str) -> bool:
    """Whether it tells of machines."""
    return name.partition("/")[0] in _SYSTEM


def rises(name: str) -> bool | None:
    """Whether more of it is better; None where nobody can tell."""
    word = _last(name).lower()
    if any(part in word for part in ("loss", "error", "rmse", "mae", "seconds", "fake", "wait", "duplicate", "ghost")):
        return False
    good = (
        "efficiency",
        "purity",
        "accuracy",
        "auc",
        "precision",
        "recall",
        "f1",
        "rejection",
        "per_second",
        "score",
        "found",
    )
    return True if any(part in word for part in good) else None


def is_rate(name: str) -> bool:
    """Whether it is a learning rate."""
    return _last(name) == "lr" or _last(name).startswith("lr ")


def _last(name: str) -> str:
    return name.rpartition("/")[2]


def _is_share(row: Any) -> bool:
    return row.min is not None and row.max is not None and row.min >= 0 and row.max <= 1.0


def _wide(name: str, row: Any) -> bool:
    return not is_rate(name) and row.min is not None and row.max is not None and row.min > 0 and row.max / row.min > 50
