"""From what a user names to a job: settings are resolved and checked here, before anything is sent."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clew.client.job import Kind, Submission
from clew.core.config import Document, with_values
from clew.errors import ConfigError
from clew.settings import Settings, load_settings

_KEY = re.compile(r"[0-9a-f]{16,64}")
"""What a dataset's content key looks like."""
PLAIN = ("features", "labels", "loss", "weight", "select", "scale")
"""Options of `clew train --model` that have one value."""


def submission(
    what: str,
    settings: Sequence[str] = (),
    *,
    kind: Kind = "train",
    name: str | None = None,
    dataset: str | None = None,
    resources: Mapping[str, Any] | None = None,
    priority: int = 0,
    group: str | None = None,
    requeue: int = 0,
    plain: Mapping[str, Any] | None = None,
) -> Submission:
    """A job from a recipe's name or file, a YAML or a run's folder, with `a.b=c` settings on top.

    A recipe's file goes with the job. Paths become absolute: agents run elsewhere. A job has as
    many workers as processes. For evaluate, `what` is the number of the job whose run is judged; for bench
    the words after `clew bench`. `plain`: training without a recipe, by the options of `clew train --model`.

    Raises:
        ConfigError, RecipeError: the settings do not fit; with the file and the line.
    """
    more: dict[str, Any] = {"kind": kind, "priority": priority, "group": group, "requeue": requeue}
    asked = {name: each for name, each in (resources or {}).items() if each is not None}
    if kind == "evaluate":
        return _evaluation(what, settings, name, dataset, {**more, "resources": asked})
    if kind == "bench":
        return _benchmark(what, settings, name, {**more, "resources": asked})
    if plain is not None:
        return _without_recipe(plain, settings, name, asked, more)
    loaded = load_settings(what, settings)
    if kind == "tune" and loaded.tune is None:
        raise ConfigError(f"{what}: no section `tune`; say what is searched, and for what (see clew tune run --help)")
    data, files = _travelling(loaded, kind)
    if kind != "prepare":
        more["dataset"] = data["train"]["dataset"] = _dataset(dataset or loaded.train.dataset)
    asked = _with_workers(_processes(loaded, kind), asked)
    named = name or Path(loaded.recipe.location).stem
    return _built({**more, "name": Path(named).name, "spec": data, "files": files, "resources": asked})


def _built(given: Mapping[str, Any]) -> Submission:
    from clew.core.config import validate

    return validate(Submission, Document(dict(given), source="the job"))


def _evaluation(
    what: str, settings: Sequence[str], name: str | None, dataset: str | None, more: dict[str, Any]
) -> Submission:
    if not what.isdecimal():
        raise ConfigError(f"{what}: name the number of the job whose run is judged (`clew jobs` shows them)")
    if settings:
        raise ConfigError("--set: a run is judged with its own settings")
    data = None if dataset is None else _dataset(dataset)
    return _built({**more, "of": int(what), "name": name or f"evaluate-{what}", "dataset": data})


def _benchmark(what: str, settings: Sequence[str], name: str | None, more: dict[str, Any]) -> Submission:
    words = shlex.split(what)
    if not words or settings or "--output" in words:
        raise ConfigError(
            "bench takes the words after `clew bench` as one ('scale tracking --dataset /data --workers 1,2'), and the "
            "name of the job with --output outside of them"
        )
    return _built({**more, "arguments": words, "name": name or f"bench-{words[0]}"})


def _without_recipe(
    plain: Mapping[str, Any], settings: Sequence[str], name: str | None, asked: dict[str, Any], more: dict[str, Any]
) -> Submission:
    """What `clew train --model` takes: code in files goes along, data files are named in full."""
    loaded = load_settings("columns", settings)
    files: dict[str, str] = {}
    if not plain.get("train"):
        raise ConfigError("--model: name the files to learn from, with --train")
    words = ["--model", _place(str(plain["model"]), files)]
    for option in ("train", "val"):
        words += [word for each in plain.get(option) or () for word in (f"--{option}", _absolute(each))]
    for option in PLAIN:
        if plain.get(option) is not None:
            words += [f"--{option}", _place(plain[option], files) if option == "loss" else plain[option]]
    words += [word for each in settings for word in ("--set", each)]
    named = name or Path(str(plain["model"]).partition(":")[0]).stem
    needs = _with_workers(_processes(loaded, "train"), asked)
    data = {**loaded.data, "recipe": "columns"}
    return _built({**more, "name": named, "spec": data, "files": files, "arguments": words, "resources": needs})


def _place(given: str, files: dict[str, str]) -> str:
    """`net.py:build` with its file among those that travel; another file by its full path; else as it is.

    Raises:
        ConfigError: the file is not there.
    """
    file, colon, name = given.partition(":")
    path = Path(file)
    if path.suffix == ".py":
        if not path.is_file():
            raise ConfigError(f"{given}: no such file; expected file.py:name")
        files[path.name] = path.read_text()
        return f"{path.name}{colon}{name}"
    return str(path.absolute()) if path.is_file() else given


def _travelling(loaded: Settings, kind: Kind) -> tuple[dict[str, Any], dict[str, str]]:
    """Settings that mean the same elsewhere, and the files they need."""
    changes: dict[str, Any] = {}
    files: dict[str, str] = {}
    place = Path(loaded.recipe.location)
    if place.suffix == ".py":
        files[place.name] = place.read_text()
        changes["recipe"] = place.name
    if kind == "prepare":
        if not loaded.prepare.input:
            raise ConfigError("prepare.input is empty; name the files: --set prepare.input=/data/events")
        changes["prepare.input"] = _absolute(loaded.data["prepare"]["input"])
    return with_values(Document(loaded.data), changes, "the job").data, files


def _absolute(given: Any) -> Any:
    if isinstance(given, Mapping):
        return {name: _absolute(each) for name, each in given.items()}
    if not isinstance(given, str):
        return [_absolute(each) for each in given]
    if "://" in given:
        return given
    return f"@{Path(given[1:]).absolute()}" if given.startswith("@") else str(Path(given).absolute())


def _dataset(given: str) -> str:
    """A key as it is, a path in full.

    Raises:
        ConfigError: nothing is there, and it is not the full path of a place on another machine.
    """
    if _KEY.fullmatch(given) and not Path(given).exists():
        return given
    if "://" in given or Path(given).is_absolute() or Path(given).exists():
        return given if "://" in given else str(Path(given).absolute())
    told = "name a folder that `clew prepare` made, its full path on the agent's machine, or its key"
    raise ConfigError(f"dataset {given}: no such folder; {told}")


def _processes(loaded: Settings, kind: Kind) -> int:
    if kind == "tune" and loaded.tune is not None:
        return (loaded.tune.parallel or 1) * loaded.tune.ranks
    if kind == "prepare":
        return loaded.prepare.workers or 1
    return loaded.train.processes


def _with_workers(processes: int, resources: Mapping[str, Any]) -> dict[str, Any]:
    """Resources of a job that has as many workers as processes, and at least one on every node."""
    return {"workers": max(processes, int(resources.get("nodes", 1))), **resources}
