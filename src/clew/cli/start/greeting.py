"""What `clew` without arguments prints: where the user is, and the next step."""

from __future__ import annotations

from pathlib import Path

from clew.cli.options import console, program
from clew.version import __version__


def greet() -> None:
    """Print the greeting. It looks at the current folder and the login only, and starts nothing."""
    console.print(f"[bold]clew {__version__}[/]: from raw events to trained, tuned and served models.\n")
    for text, command in _steps():
        console.print(f"{text}\n  [cyan]{program()} {command}[/]")
    console.print(f"\n[dim]All commands: {program()} --help. One of them: {program()} train --help[/]")


def _steps() -> list[tuple[str, str]]:
    from clew.client.credentials import credentials

    runs, datasets = _newest("runs/*/config.yaml"), _newest("*/manifest.json")
    login = credentials()
    served = [] if login is None else [(f"You are logged in at {login.server}. What runs there:", "jobs")]
    if runs is not None:
        return [("Your runs in this folder:", "runs list"), ("The newest one:", f"runs show {runs}"), *served]
    if datasets is not None:
        return [("There is a dataset here. Train on it:", f"train RECIPE --dataset {datasets}"), *served]
    return [
        ("Try it: a training on synthetic events, about two minutes.", "demo"),
        ("Then write a recipe for your own data:", "init my_recipe --like tracking"),
        *served,
    ]


def _newest(pattern: str) -> Path | None:
    matches = sorted(Path().glob(pattern), key=lambda path: path.stat().st_mtime)
    return matches[-1].parent if matches else None
