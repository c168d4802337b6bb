"""The command line as a user sees it: exit code, stdout and stderr."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer

from clew.cli import main

SCRIPT = Path(sys.executable).parent / "clew"


@dataclass(frozen=True)
class Outcome:
    """The exit code and output of a command."""

    code: int
    out: str
    err: str


def clew(*arguments: str | Path) -> Outcome:
    """Run a command in this process. This is fast, because torch is already loaded."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["clew", *map(str, arguments)])
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        with pytest.raises(SystemExit) as ended:
            main.run()
    return Outcome(int(ended.value.code or 0), out.getvalue(), err.getvalue())


def done(*arguments: str | Path) -> str:
    """The output of a command that must succeed without a warning."""
    outcome = clew(*arguments)
    assert (outcome.code, outcome.err) == (0, ""), outcome
    return outcome.out


def script(*arguments: str | Path, folder: Path | None = None) -> Outcome:
    """Run the installed console script in a separate process."""
    command = [str(SCRIPT), *map(str, arguments)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, timeout=120)
    return Outcome(ended.returncode, ended.stdout, ended.stderr)


def commands() -> list[tuple[str, ...]]:
    """Every command without the groups: ("train",), ("runs", "list"), ..."""
    return list(_beneath(typer.main.get_command(main.app), ()))


def _beneath(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if not hasattr(command, "commands"):
        yield words
    for name, inner in getattr(command, "commands", {}).items():
        yield from _beneath(inner, (*words, name))
