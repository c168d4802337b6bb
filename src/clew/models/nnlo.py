"""Turns a command line of NNLO (`TrainingDriver.py`) or mpi_learn (`MPIDriver.py`) into one of clew."""

from __future__ import annotations

import argparse
import ast
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

from clew.errors import ConfigError, nearest

_LONGEST_NAME = 200
_DRIVERS = ("TrainingDriver.py", "MPIDriver.py")
_FLAGS = [
    "--synchronous",
    "--easgd",
    "--thread_validation",
    "--monitor",
    "--timeline",
    "--tf",
    "--profile",
    "--verbose",
    "--master-gpu",
    "--preload-data",
    "--use-hvd",
]
_VALUES = [
    "--model",
    "--train_data",
    "--val_data",
    "--features-name",
    "--labels-name",
    "--batch",
    "--epochs",
    "--loss",
    "--worker-optimizer",
    "--worker-optimizer-params",
    "--optimizer",
    "--sync-every",
    "--elastic-force",
    "--elastic-lr",
    "--elastic-momentum",
    "--gem-lr",
    "--gem-momentum",
    "--gem-kappa",
    "--mode",
    "--n-masters",
    "--masters",
    "--early-stopping",
    "--target-metric",
    "--checkpoint",
    "--checkpoint-interval",
    "--restore",
    "--trial-name",
    "--output",
    "--max-gpus",
    "--n-processes",
    "--processes",
    "--cache-data",
    "--copy-command",
    "--log-file",
    "--log-level",
    "--backend",
    "--max-hvd",
]
_NO_COUNTERPART = {
    "tf": "Keras computes on its torch backend",
    "max_gpus": "a worker uses the device with the number of its rank on the host",
    "master_gpu": "a worker uses the device with the number of its rank on the host",
    "n_processes": "a worker is one process",
    "processes": "a worker is one process",
    "cache_data": "files from stores are copied once and cached",
    "copy_command": "files from stores are copied once and cached",
    "log_file": "`clew follow` shows a run; its records are in its folder",
    "log_level": "`clew follow` shows a run; its records are in its folder",
    "profile": "`clew trace` shows where the time went",
    "use_hvd": "`--workers` of clew needs no Horovod",
    "max_hvd": "`--workers` of clew needs no Horovod",
}
"""Options without a counterpart, and why they are not needed."""


@dataclass(frozen=True)
class ConvertedCommand:
    """A command line of clew.

    Args:
        words: The words of the command.
        lists: Options that name lists of files, and the list of each: its lines are passed one by one.
        differences: One line for each option without a counterpart or with another meaning.
        model: The file of the model, without the name of a function in it.
    """

    words: tuple[str, ...]
    lists: tuple[tuple[str, str], ...]
    differences: tuple[str, ...]
    model: str

    def script(self, source: str) -> str:
        """Return a shell script with the command."""
        notes = "".join(f"# - {line}\n" for line in self.differences) or "# - nothing\n"
        lists = "".join(f" \\\n    $(sed 's/^/{option} /' {shlex.quote(name)})" for option, name in self.lists)
        command = " \\\n    ".join([" ".join(map(shlex.quote, self.words[:1])), *_pairs(self.words[1:])])
        return (
            f"#!/bin/sh\n# Made by `clew init --from-nnlo` from {source}. What is different:\n{notes}{command}{lists}\n"
        )


def convert(text: str) -> ConvertedCommand:
    """Convert a command line.

    Args:
        text: The command line, or the name of a file that contains it, such as a batch script.

    Raises:
        ConfigError: There is no such command in it, or an option is not known.
    """
    before, after = _split(_command(text))
    options = _parse(after)
    processes = _processes(before)
    asynchronous = _strategy(options, processes)
    words = _launcher(processes, asynchronous is not None) + _training(options)
    words += ["--strategy", asynchronous] if asynchronous else []
    words += [word for key, value in _settings(options, asynchronous).items() for word in ("--set", f"{key}={value}")]
    words += ["--output", f"runs/{options.trial_name or 'train'}"]
    lists = tuple((o, n) for o, n in (("--train", options.train_data), ("--val", options.val_data)) if n)
    return ConvertedCommand(
        tuple(words), lists, tuple(_differences(options, asynchronous)), options.model.partition(":")[0]
    )


def is_script(text: str) -> bool:
    """Whether a text is the name of a file, not a command line."""
    return len(text) < _LONGEST_NAME and Path(text).is_file()


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"the command of NNLO: {message}")


def _command(text: str) -> str:
    if is_script(text):
        text = Path(text).read_text(encoding="utf-8", errors="replace")
    lines = re.sub(r"\\\n", " ", text).splitlines()
    matches = [line for line in lines if any(driver in line.partition("#")[0] for driver in _DRIVERS)]
    if not matches:
        raise ConfigError(
            f"no command with {' or '.join(_DRIVERS)} in '{text.strip()[:60]}'; name a script or quote it"
        )
    return matches[0]


def _split(line: str) -> tuple[list[str], list[str]]:
    try:
        words = shlex.split(line, comments=True)
    except ValueError as error:
        raise ConfigError(f"the command of NNLO cannot be read: {error}") from error
    place = next(number for number, word in enumerate(words) if Path(word).name in _DRIVERS)
    return words[:place], words[place + 1 :]


def _parse(words: Sequence[str]) -> argparse.Namespace:
    parser = _Parser(add_help=False, allow_abbrev=False)
    for name in _FLAGS:
        parser.add_argument(name, action="store_true")
    for name in _VALUES:
        parser.add_argument(name)
    options, rest = parser.parse_known_args(list(words))
    unknown = [word for word in rest if word.startswith("-")]
    if unknown:
        raise ConfigError(f"NNLO and mpi_learn have no option {unknown[0]}{nearest(unknown[0], (*_FLAGS, *_VALUES))}")
    for name, value in zip(("model", "train_data", "val_data"), rest, strict=False):
        setattr(options, name, getattr(options, name) or value)
    if not options.model or not options.train_data:
        raise ConfigError("the command of NNLO names no model or no list of files to train on")
    return options


def _processes(before: Sequence[str]) -> int:
    for option, value in pairwise(before):
        if option in ("-np", "-n", "--np", "--n", "--ntasks"):
            if not value.isdigit() or int(value) < 1:
                raise ConfigError(f"the command of NNLO: {option} {value} is not a number of processes")
            return int(value)
    return 1


def _strategy(options: argparse.Namespace, processes: int) -> str | None:
    mode = {"sgd": "downpour", None: "downpour"}.get(options.mode, options.mode)
    mode = "easgd" if options.easgd else mode
    if mode not in ("downpour", "easgd", "gem"):
        raise ConfigError(f"NNLO has no mode '{mode}'; it has sgd, easgd and gem")
    return None if processes < 3 or (options.synchronous and mode == "downpour") else str(mode)


def _launcher(processes: int, asynchronous: bool) -> list[str]:
    ranks = processes if asynchronous else max(processes - 1, 1)
    return ["mpiexec", "-n", str(ranks), "clew", "train"] if ranks > 1 else ["clew", "train"]


def _training(options: argparse.Namespace) -> list[str]:
    model = f"{options.model}:build" if options.model.endswith(".py") else options.model
    return [
        *(
            "--model",
            model,
            "--features",
            options.features_name or "features",
            "--labels",
            options.labels_name or "labels",
        ),
        *("--loss", options.loss or "binary_crossentropy", "--epochs", options.epochs or "1"),
    ]


def _settings(options: argparse.Namespace, strategy: str | None) -> dict[str, Any]:
    values: dict[str, Any] = {"train.batch_size": options.batch or "100"}
    optimizer = options.worker_optimizer if strategy in ("easgd", "gem") or not options.optimizer else options.optimizer
    values["train.optimizer.name"] = optimizer or ("sgd" if strategy in ("easgd", "gem") else "adam")
    parameters = _parameters(options.worker_optimizer_params)
    lr = parameters.pop("lr", None)
    if values["train.optimizer.name"] == "sgd":  # the two programs use these options for SGD only
        lr = {"easgd": options.elastic_lr, "gem": options.gem_lr}.get(strategy or "") or lr
        parameters |= {"momentum": options.elastic_momentum} if strategy == "easgd" and options.elastic_momentum else {}
    values |= {"train.optimizer.lr": lr} if lr is not None else {}
    values |= {f"train.optimizer.parameters.{name}": value for name, value in parameters.items()}
    if strategy:
        names = {"sync_every": options.sync_every, "masters": options.n_masters or options.masters}
        names |= {"elasticity": options.elastic_force} if strategy == "easgd" else {}
        names |= {"momentum": options.gem_momentum, "kappa": options.gem_kappa} if strategy == "gem" else {}
        values |= {f"train.asynchronous.{name}": value for name, value in names.items() if value not in (None, "1")}
    values |= {"train.validation": "background"} if options.thread_validation else {}
    values |= {"train.log_every": 1} if options.verbose else {}
    values |= {"train.early_stopping": _criterion(options.early_stopping, "patience")} if options.early_stopping else {}
    return values | ({"train.target": _criterion(options.target_metric, "value")} if options.target_metric else {})


def _parameters(text: str | None) -> dict[str, Any]:
    try:
        values = ast.literal_eval(text) if text else {}
    except (ValueError, SyntaxError) as error:
        raise ConfigError(f"--worker-optimizer-params {text}: not a dictionary") from error
    if not isinstance(values, dict):
        raise ConfigError(f"--worker-optimizer-params {text}: not a dictionary")
    return values


def _criterion(text: str, what: str) -> str:
    """`5`, or `val_loss,<,5` as NNLO writes it, as a setting."""
    metric, _, number = text.rpartition(",")
    metric = metric.partition(",")[0].removeprefix("val_") or "loss"
    try:
        value = int(number) if what == "patience" else float(number)
    except ValueError as error:
        raise ConfigError(f"'{text}': expected a number, or metric,<,number") from error
    return f"{{metric: {'accuracy' if metric == 'acc' else metric}, {what}: {value}}}"


def _differences(options: argparse.Namespace, strategy: str | None) -> list[str]:
    lines = [f"--{k.replace('_', '-')}: {text}" for k, text in _NO_COUNTERPART.items() if getattr(options, k)]
    if strategy is None:
        lines.append("--batch: the batch size of all processes together; there is no master")
    if options.restore:
        lines.append("--restore: `clew train --resume RUN`")
    if options.checkpoint or options.checkpoint_interval:
        lines.append("--checkpoint: a run always has checkpoints, after every epoch")
    if options.model.endswith(".py"):
        lines.append(f"--model: the function build() of {options.model}; change the name if it is another one")
    return lines


def _pairs(words: Sequence[str]) -> list[str]:
    """The words with one option and its value per line."""
    lines: list[str] = []
    for word in words:
        if word.startswith("-") or not lines:
            lines.append(shlex.quote(word))
        else:
            lines[-1] += f" {shlex.quote(word)}"
    return lines
