"""Every exception that clew raises on purpose.

    ClewError                 the root: catch this to catch all of them
    ├── UserError             a mistake that the user can correct: one line, exit code 2
    │   ├── ConfigError       a setting; the message names file, line, key and allowed values
    │   │   └── MissingMetricError   a metric in the settings that validations do not have
    │   ├── DataError         an input file, a table or a dataset
    │   ├── RecipeError       a recipe that cannot be found or loaded, or breaks the contract
    │   ├── RunError          a run folder that is missing, in use or incomplete
    │   └── ServerError       a server that cannot be reached or refuses a request
    ├── WorkerError           a process that clew started failed: exit code 1
    │   ├── LostWorkerError   it died without a message: killed, or out of memory
    │   └── LostPeerError     another process of an asynchronous training disappeared
    ├── JobError              a submitted job failed: exit code of the job
    └── StoppedError          stopped before the end, can be resumed: exit code 75
        ├── InterruptError    stopped by Ctrl-C: exit code 130
        └── LeaseError        the work was assigned to another process

A message says in one line what was given, what is allowed and what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

_ALL_LISTED, _NEAREST = 8, 5
"""A message lists all of so many names; of more names it lists the nearest few."""


class ClewError(Exception):
    """Root of the tree. `exit_code` is the exit code of the command line."""

    exit_code = 1
    facts: Mapping[str, Any] = {}
    """What the end record of a run holds in addition to the message."""


class UserError(ClewError):
    """A mistake that the user can correct. The message is always one line."""

    exit_code = 2

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(line.strip() for line in message.splitlines()))


class ConfigError(UserError):
    """A setting is unknown, missing or out of range."""


class MissingMetricError(ConfigError):
    """The settings name a metric that validations do not have.

    Args:
        message: What was given and what is allowed.
        metric: The metric in the settings.
        metrics: The metrics of the validations.
    """

    def __init__(self, message: str, metric: str = "", metrics: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.facts = {"metric": metric, "metrics": list(metrics)}


class DataError(UserError):
    """Input data cannot be used as it is."""


class RecipeError(UserError):
    """A recipe cannot be found or does not keep the contract."""


class RunError(UserError):
    """A run folder cannot be used."""


class ServerError(UserError):
    """A server cannot be reached or refuses a request.

    Args:
        message: What happened and what to do.
        status: The HTTP status, or 0 if the server did not answer.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class WorkerError(ClewError):
    """A worker process failed. The message contains its rank and its own error message."""


class LostWorkerError(WorkerError):
    """A worker process died without a message. A second try may succeed."""


class LostPeerError(WorkerError):
    """A process of an asynchronous training cannot be reached."""


class JobError(ClewError):
    """A submitted job failed, was cancelled or disappeared."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class StoppedError(ClewError):
    """A run was stopped by a signal or a time limit and can be resumed. Exit code 75 asks batch systems to retry."""

    exit_code = 75


class InterruptError(StoppedError):
    """A run was stopped by Ctrl-C, after a checkpoint was written. It can be resumed."""

    exit_code = 130


class LeaseError(StoppedError):
    """This process lost its lease because it did not renew it in time. Another process does the work now."""


_USER_ERRORS = (ConfigError, MissingMetricError, DataError, RecipeError, RunError, UserError)


def error_from_process(process: str, kind: str, message: str) -> ClewError:
    """Return the error to raise for an error in another process, of which only the name and the text arrived.

    Args:
        process: The process, for example `rank 1`.
        kind: Name of the class of the error.
        message: Its text.

    Returns:
        A mistake of the user's unchanged; anything else as a `WorkerError`.
    """
    classes = {kind.__name__: kind for kind in _USER_ERRORS}
    classes["RecipeCodeError"] = RecipeError
    if kind in classes:
        return classes[kind](message)
    return WorkerError(f"{process}: {message}")


def nearest(name: str, choices: Iterable[str]) -> str:
    """The end of an error message: a suggestion if a choice is similar to `name`, else the choices, else nothing.

    Of many choices only the nearest five are listed.

    Example:
        >>> nearest("epoch", ["epochs", "seed"])
        "; did you mean 'epochs'?"
    """
    names = sorted(choices)
    close = difflib.get_close_matches(name, names, n=1)
    if close:
        return f"; did you mean '{close[0]}'?"
    return f"; choose from {list_names(names, name)}" if names else ""


def list_names(names: Iterable[str], near: str = "") -> str:
    """Return names as one text. Of many names, the five nearest to `near` and the number of the others.

    Example:
        >>> list_names(["a", "b"])
        'a, b'
        >>> list_names((f"branch{number}" for number in range(300)), near="branch7")
        'branch7, branch97, branch87, branch79, branch78 and 295 more'
    """
    all_names = list(names)
    if len(all_names) <= _ALL_LISTED:
        return ", ".join(all_names)
    closest = difflib.get_close_matches(near, all_names, n=_NEAREST, cutoff=0.0)
    return f"{', '.join(closest)} and {len(all_names) - len(closest)} more"
