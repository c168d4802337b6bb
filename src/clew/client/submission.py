"""Makes a job from what a user names. Settings are resolved and checked before anything is sent."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

from clew.client.datasets import DATASET_KEY
from clew.client.job import MAX_CODE, MAX_FILES, Kind, Submission
from clew.core.config import Document, parse_bytes, parse_seconds, with_values
from clew.core.source_files import check_name_in_source, local_sources
from clew.errors import ConfigError, RecipeError
from clew.recipe import Recipe, resolve
from clew.recipe.lookup import FILE_MODULE
from clew.runs.folder import find_run_path
from clew.settings import Settings, load_settings
from clew.storage import absolute_location, absolute_locations, is_url, local_path

MODEL_OPTIONS = ("features", "labels", "loss", "weight", "select", "scale")
"""Options of `clew train --model` that take one value."""


class JobOptions(TypedDict, total=False):
    """Options of a job that do not depend on its kind."""

    name: str | None
    """Name of the job; default: that of the recipe."""
    dataset: str | None
    """The dataset: a folder, its full path on the agent's machine, or its key."""
    resources: Mapping[str, Any] | None
    """Fields of `Resources`; memory and wall time also as text (`16G`, `2h`). Default for `workers`: the number of
    processes of the job."""
    store: str | None
    """Where the outputs go: a URL of a store, or a folder of the agent's machine."""
    priority: int
    group: str | None
    requeue: int
    arguments: Sequence[str]
    """Arguments of a script."""
    trials_as_jobs: bool
    """Make every trial of a study a job, which any agent may take. `resources` are then those of one trial."""


def submission(
    target: str | Path | type[Recipe],
    settings: Sequence[str] | Mapping[str, Any] = (),
    *,
    kind: Kind = "train",
    model: Mapping[str, Any] | None = None,
    **options: Unpack[JobOptions],
) -> Submission:
    """Make a job from a recipe, a YAML file or a run's folder.

    A recipe's file is sent with the job, with the modules of its folder that it imports. Paths become absolute,
    because agents run elsewhere.

    Args:
        target: A recipe's name, file or class, a YAML file or a run's folder. For `evaluate`: the number of the job
            whose run is evaluated. For `bench`: the arguments of `clew bench` as one text. For `script`: a Python or
            shell file.
        settings: Changes of settings: `["train.epochs=10"]` or `{"train.epochs": 10}`.
        kind: `train`, `tune`, `prepare`, `evaluate`, `bench` or `script`.
        model: Train without a recipe, with these options of `clew train --model`.
        options: Fields of `JobOptions`: name, dataset, resources, store, priority, group, requeue,
            arguments, trials_as_jobs.

    Raises:
        ConfigError: the settings do not fit; the message has the file and the line.
        RecipeError: there is no such recipe.

    Example:
        >>> job = submission("tracking", ["train.epochs=5"], dataset="/data/tracking", resources={"cpus": 4})
        >>> job.name, job.resources.cpus
        ('tracking', 4)
    """
    if isinstance(settings, Mapping):
        settings = [f"{name}={json.dumps(value)}" for name, value in settings.items()]
    target = str(target) if isinstance(target, (str, Path)) else _recipe_location(target)
    if kind == "evaluate":
        return _evaluation(target, settings, options)
    if kind == "bench":
        return _benchmark(target, settings, options)
    if kind == "script":
        return _script(Path(target), settings, options)
    if model is not None:
        return _without_recipe(model, settings, options)
    loaded = load_settings(target, settings)
    if kind == "tune" and loaded.tune is None:
        raise ConfigError(f"{target}: no section `tune` with a space and an objective (see clew tune run --help)")
    if (find_run_path(target) / "config.yaml").is_file():
        from clew.training.run_recipe import warn_if_code_changed  # loads torch, which other jobs do not need

        warn_if_code_changed(target)
    data, files = _without_secrets(*portable_settings(loaded, kind), kind)
    body = {**_common_fields(options), "kind": kind, "spec": data, "files": files}
    if kind != "prepare":
        body["dataset"] = data["train"]["dataset"] = _dataset(options.get("dataset") or loaded.train.dataset)
    if options.get("trials_as_jobs") and loaded.tune is not None:
        body |= {"trials_as_jobs": True, "resources": _with_workers(loaded.tune.ranks, body["resources"])}
    else:
        body["resources"] = _with_workers(job_processes(loaded, kind), body["resources"])
    return _validated({**body, "name": Path(options.get("name") or _default_name(loaded)).name})


def _without_secrets(data: dict[str, Any], files: Any, kind: str) -> tuple[dict[str, Any], Any]:
    """Return settings and files of a job, after a check that its inputs need no password in the settings."""
    inputs = data["prepare"]["input"] if kind == "prepare" else ()
    if "***" in json.dumps(inputs):
        raise ConfigError(
            f"{inputs}: a password or token in a job is stored by the server; use the agent's environment"
        )
    return data, files


def _recipe_location(kind: type[Recipe]) -> str:
    """Return what a recipe's class is loaded by elsewhere: its name, `file.py:Class`, or the module of a package.

    Raises:
        RecipeError: The class was typed in, or its file submits it whenever it is loaded.
    """
    if kind.__module__.startswith(FILE_MODULE):
        hint = "put the submission under `if __name__ == '__main__':`"
        raise RecipeError(f"the file of recipe {kind.__name__} submits it while it is loaded; {hint}")
    location = resolve(kind).location
    if not location:
        raise RecipeError(f"recipe {kind.__name__} was typed in, and agents cannot load it; save it in a file")
    module, _, name = location.partition(":")
    file = Path(getattr(sys.modules.get(module), "__file__", None) or location)
    if name and not {"site-packages", "dist-packages"} & set(file.parts):
        return f"{file}:{name}"
    return f"{location}:{kind.__name__}" if file.suffix == ".py" and not name else location


def _common_fields(options: JobOptions) -> dict[str, Any]:
    """The fields of `Submission` that do not depend on the kind."""
    resources = {name: value for name, value in (options.get("resources") or {}).items() if value is not None}
    for name, parse in (("memory", parse_bytes), ("wall_time", parse_seconds)):
        if isinstance(resources.get(name), str):
            resources[name] = parse(resources[name], f"--{name.replace('_', '-')}")
    same = {"priority": options.get("priority", 0), "requeue": options.get("requeue", 0)}
    store = None if options.get("store") is None else absolute_location(str(options.get("store")))
    return {**same, "group": options.get("group"), "resources": resources, "store": store}


def _validated(body: Mapping[str, Any]) -> Submission:
    from clew.core.config import validate

    return validate(Submission, Document(dict(body), source="the job"))


def _evaluation(target: str, settings: Sequence[str], options: JobOptions) -> Submission:
    if not target.isdecimal():
        raise ConfigError(f"{target}: name the number of the job whose run is evaluated (`clew jobs` shows them)")
    if settings:
        raise ConfigError("--set: a run is evaluated with its own settings")
    dataset = None if options.get("dataset") is None else _dataset(str(options.get("dataset")))
    name = options.get("name") or f"evaluate-{target}"
    body = {"kind": "evaluate", "target_job": int(target), "name": name, "dataset": dataset}
    return _validated({**_common_fields(options), **body})


def _benchmark(target: str, settings: Sequence[str], options: JobOptions) -> Submission:
    arguments = shlex.split(target)
    if not arguments or settings or "--output" in arguments:
        raise ConfigError(
            "bench takes the arguments of `clew bench` as one text ('scale tracking --dataset /data --workers 1,2'), "
            "and the name of the job with --output outside of it"
        )
    name = options.get("name") or f"bench-{arguments[0]}"
    return _validated({**_common_fields(options), "kind": "bench", "arguments": arguments, "name": name})


def _script(path: Path, settings: Sequence[str], options: JobOptions) -> Submission:
    if not path.is_file():
        raise ConfigError(f"{path}: no such file; name a Python or shell script")
    if settings or options.get("dataset") is not None:
        raise ConfigError("--set and --dataset: a script takes its own arguments, after --")
    name = options.get("name") or re.sub(r"[^A-Za-z0-9_.-]", "-", path.stem).lstrip("_.-") or "script"
    body = {**_common_fields(options), "kind": "script", "name": name, "files": code_files(path)}
    body["resources"] = _with_workers(1, body["resources"])
    return _validated({**body, "arguments": [path.name, *(options.get("arguments") or ())]})


def code_files(path: Path) -> dict[str, str]:
    """Return a file as it is sent with a job; of Python, also the modules of its folder that it imports.

    Args:
        path: A Python file or another text file.

    Raises:
        ConfigError: A file cannot be sent.
        RecipeError: A file is not valid Python.
    """
    sources = local_sources(path) if path.suffix == ".py" else {path.name: path}
    if len(sources) > MAX_FILES:
        raise ConfigError(f"{path} imports {len(sources)} files of its folder; at most {MAX_FILES} travel with a job")
    return {name: _file_text(source) for name, source in sources.items()}


def _file_text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text; only source files travel with a job") from None
    if len(text) > MAX_CODE:
        limit = f"at most {MAX_CODE // 1000} kB of a file travel with a job"
        raise ConfigError(f"{path}: {len(text) / 1000:,.0f} kB; {limit}, put data where the agent can read it")
    return text


def _without_recipe(model: Mapping[str, Any], settings: Sequence[str], options: JobOptions) -> Submission:
    """Make a job of `clew train --model`: Python files are sent with it, data files get their full paths."""
    loaded = load_settings("columns", settings)
    files: dict[str, str] = {}
    if not model.get("train"):
        raise ConfigError("--model and --estimator: name the files to train on, with --train")
    source = "model" if model.get("model") else "estimator"
    if source == "estimator":
        from clew.models.estimators import check_name  # loads torch, which other jobs do not need

        check_name(str(model["estimator"]))
    arguments = [f"--{source}", _with_file(str(model[source]), files)]
    for option in ("train", "val"):
        for path in model.get(option) or ():
            is_code = ".py:" in str(path)  # a LightningDataModule
            arguments += [f"--{option}", _with_file(path, files) if is_code else absolute_locations(path)]
    for option in MODEL_OPTIONS:
        if model.get(option) is not None:
            value = model[option]
            arguments += [f"--{option}", _with_file(value, files) if option == "loss" else value]
    for setting in settings:
        arguments += ["--set", setting]
    body = {**_common_fields(options), "kind": "train", "files": files, "arguments": arguments}
    body["name"] = options.get("name") or Path(str(model[source]).partition(":")[0]).stem
    body["resources"] = _with_workers(job_processes(loaded, "train"), body["resources"])
    return _validated({**body, "spec": {**loaded.data, "recipe": "columns"}})


def _with_file(reference: str, files: dict[str, str]) -> str:
    """Return `net.py:build` and add its file to `files`; another file by its full path; any other text unchanged.

    Raises:
        ConfigError: there is no such file.
        RecipeError: The file does not define the name.
    """
    file, colon, name = reference.partition(":")
    path = Path(file)
    if path.suffix == ".py":
        if not path.is_file():
            raise ConfigError(f"{reference}: no such file; expected file.py:name")
        files.update(code_files(path))
        if name:
            check_name_in_source(path, name)
        return f"{path.name}{colon}{name}"
    return str(path.absolute()) if path.is_file() else reference


def portable_settings(loaded: Settings, kind: Kind) -> tuple[dict[str, Any], dict[str, str]]:
    """Return settings that mean the same on another machine, and the files they need.

    Args:
        loaded: The settings of this machine.
        kind: The kind of job; `prepare` needs its input files by their full paths.

    Raises:
        ConfigError: A file cannot be sent, or `prepare` has no input.
    """
    changes: dict[str, Any] = {}
    files: dict[str, str] = {}
    file, _, name = loaded.recipe.location.partition(".py:")
    location = Path(f"{file}.py" if name else file)
    if location.suffix == ".py":
        files = code_files(location)
        changes["recipe"] = f"{location.name}:{name}" if name else location.name
    if kind == "prepare":
        if not loaded.prepare.input:
            raise ConfigError("prepare.input is empty; name the files: --set prepare.input=/data/events")
        changes["prepare.input"] = absolute_locations(loaded.data["prepare"]["input"])
    return with_values(Document(loaded.data), changes, "the job").data, files


def _dataset(name: str) -> str:
    """Return a key or a URL of a store unchanged, and a path as an absolute path.

    Raises:
        ConfigError: The folder does not exist and the path is not absolute, or the scheme of the URL is unknown.
    """
    if DATASET_KEY.fullmatch(name) and not Path(name).exists():
        return name
    location = absolute_location(name)
    if is_url(location) or Path(name).is_absolute() or local_path(name).exists():
        return location
    hint = "name a folder that `clew prepare` made, its full path on the agent's machine, its key, or a URL of a store"
    raise ConfigError(f"dataset {name}: no such folder; {hint}")


def _default_name(loaded: Settings) -> str:
    """The name of the recipe's file or class."""
    location = loaded.recipe.location
    return Path(location.partition(":")[0]).stem if ".py" in location else re.sub(r"[^\w.-]", "-", location)


def job_processes(loaded: Any, kind: str) -> int:
    """Return how many processes a job starts, by its settings.

    Args:
        loaded: The settings, with the sections `train`, `tune` and `prepare`.
        kind: The kind of job.
    """
    if kind == "tune" and loaded.tune is not None:
        return int((loaded.tune.parallel or 1) * loaded.tune.ranks)
    if kind == "prepare":
        return int(loaded.prepare.workers or 1)
    return int(loaded.train.processes)


def _with_workers(processes: int, resources: Mapping[str, Any]) -> dict[str, Any]:
    """Return resources with one worker per process, and at least one per node."""
    return {"workers": max(processes, int(resources.get("nodes", 1))), **resources}
