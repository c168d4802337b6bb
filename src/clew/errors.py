"""Every exception clew raises on purpose.

    ClewError                 the root: catch this to catch them all
    ├── UserError             a mistake the user can put right: one line, exit code 2
    │   ├── ConfigError       a setting: which file, line and key, what is allowed
    │   ├── DataError         an input file, a table or a dataset
    │   ├── RecipeError       a recipe that cannot be found, loaded, or breaks the contract
    │   ├── RunError          a run folder that is missing, taken or half-written
    │   └── ServerError       a server that cannot be reached, or says no
    ├── WorkerError           a process of ours failed: exit code 1
    │   ├── LostWorkerError   it died without a word: killed, or out of memory
    │   └── LostPeerError     another process of an asynchronous training is gone
    └── StoppedError          told to stop before the end, ready to go on: exit code 75
        └── LeaseError        the work was taken back and given to another

A message says what was given, what is allowed and what to do, in one line.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ClewError(Exception):
    """Root of the tree. `exit_code` is what the command line ends with."""

    exit_code = 1


class UserError(ClewError):
    """A mistake the user can put right; whatever went into the message, it comes out as one line."""

    exit_code = 2

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(line.strip() for line in message.splitlines()))


class ConfigError(UserError):
    """A setting is unknown, missing or out of range."""


class DataError(UserError):
    """Input data cannot be used as it is."""


class RecipeError(UserError):
    """A recipe cannot be found or does not keep the contract."""


class RunError(UserError):
    """A run folder cannot be used."""


class ServerError(UserError):
    """A server cannot be reached, or does not do what it was asked; `status` is HTTP's, 0 where it did not answer."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class WorkerError(ClewError):
    """A worker process failed; the message carries its rank and its own words."""


class LostWorkerError(WorkerError):
    """A worker process died without a word; trying again may help."""


class LostPeerError(WorkerError):
    """A process that takes part in an asynchronous training cannot be reached."""


class StoppedError(ClewError):
    """A run was told to stop, by a signal or a deadline, and can be resumed. 75 tells batch systems to try again."""

    exit_code = 75


class LeaseError(StoppedError):
    """What this process works on was taken back, as it gave no sign of life; another goes on with it."""


def nearest(name: str, choices: Iterable[str]) -> str:
    """The end of an error line: ` (did you mean 'x'?)`, or the choices, or nothing."""
    known = sorted(choices)
    close = difflib.get_close_matches(name, known, n=1)
    if close:
        return f"; did you mean '{close[0]}'?"
    return f"; choose from {', '.join(known)}" if known else ""
