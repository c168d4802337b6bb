"""Decides which curves share a plot."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from clew.runs.record_metrics import COMMUNICATE, EPOCH_SECONDS, SPEED, WAIT

_SYSTEM = ("speed", "usage")
"""Prefixes of metrics of the machine, as opposed to metrics of the training."""
_RANK = re.compile(r"@\d+$")
_MAX_CURVES = 6
"""Curves per plot."""
_TITLES = {
    SPEED: ("Speed", "samples/s"),
    WAIT: ("Waiting for data", "fraction of the time"),
    COMMUNICATE: ("Communication", "fraction of the time"),
    EPOCH_SECONDS: ("Time per epoch", "s"),
    "usage/cpu": ("Cores in use", ""),
    "usage/memory": ("Memory", "bytes"),
    "usage/energy": ("Energy", "J"),
    "usage/power": ("Power", "W"),
    "usage/device": ("Device", "fraction of the time"),
    "usage/device_memory": ("Memory of the device", "bytes"),
}


def training_panels(known: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return plots of the training: losses together, fractions together, every other metric alone."""
    names = [name for name in known if not is_system(name)]
    losses = [
        name for name in names if _last(name) == "loss" or (name.startswith("train/") and not is_learning_rate(name))
    ]
    rest = [name for name in names if name not in losses]
    fractions = [name for name in rest if name.startswith("val/") and _is_fraction(known[name])]
    panels = [{"title": "Loss", "names": losses, "log": True}] if losses else []
    panels += [{"title": name, "names": some, "log": False} for name, some in _families(fractions)]
    single = [name for name in rest if name not in fractions]
    return panels + [{"title": title(name)[0], "names": [name], "log": _wide(name, known[name])} for name in single]


def _families(fractions: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield one plot if it is readable; otherwise one plot per first word of the names."""
    if len(fractions) <= _MAX_CURVES:
        yield from _split("Validation", fractions)
        return
    by_word: dict[str, list[str]] = {}
    for name in fractions:
        by_word.setdefault(_last(name).partition("_")[0], []).append(name)
    rest = [name for some in by_word.values() if len(some) == 1 for name in some]
    yield from _split("Validation", rest)
    for word, some in by_word.items():
        if len(some) > 1:
            yield from _split(f"Validation: {word}", some)


def _split(heading: str, names: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Distribute curves evenly over as few readable plots as possible."""
    plots = -(-len(names) // _MAX_CURVES)
    for number in range(plots):
        some = names[number * len(names) // plots : (number + 1) * len(names) // plots]
        numbered = f"{heading}, {number + 1} of {plots}" if plots > 1 else heading
        yield (title(some[0])[0] if len(some) == 1 else numbered), some


def system_panels(known: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return plots of speed, waiting and machine usage; the same metric of several ranks is one plot."""
    by_metric: dict[str, list[str]] = {}
    for name in known:
        if is_system(name):
            by_metric.setdefault(_RANK.sub("", name), []).append(name)
    order = list(_TITLES)
    ordered = sorted(by_metric.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order))
    return [{"title": title(key)[0], "unit": title(key)[1], "names": names} for key, names in ordered]


def single_panels(names: Iterable[str], known: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return one plot per metric, for several runs in one plot."""
    return [
        {"title": name, "names": [name], "log": _last(name) == "loss" or _wide(name, known[name])} for name in names
    ]


def title(name: str) -> tuple[str, str]:
    """Return the title of a metric and its unit."""
    return _TITLES.get(name, ("Learning rate" if is_learning_rate(name) else name.replace("_", " "), ""))


def is_system(name: str) -> bool:
    """Return whether a metric describes the machine."""
    return name.partition("/")[0] in _SYSTEM


def higher_is_better(name: str) -> bool | None:
    """Return whether a higher value is better; None if unknown."""
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


def is_learning_rate(name: str) -> bool:
    """Return whether a metric is a learning rate."""
    return _last(name) == "lr" or _last(name).startswith("lr ")


def _last(name: str) -> str:
    return name.rpartition("/")[2]


def _is_fraction(row: Any) -> bool:
    return row.min is not None and row.max is not None and row.min >= 0 and row.max <= 1.0


def _wide(name: str, row: Any) -> bool:
    return (
        not is_learning_rate(name)
        and row.min is not None
        and row.max is not None
        and row.min > 0
        and row.max / row.min > 50
    )
