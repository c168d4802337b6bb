"""`clew init`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from clew.cli.options import bold, console


def init(
    name: Annotated[str, typer.Argument(help="What to call it: letters, digits and _.")],
    like: Annotated[str, typer.Option(help="The shipped recipe to start from: tracking or hitgraph.")] = "tracking",
    folder: Annotated[Path, typer.Option(help="Where the files go.")] = Path(),
) -> None:
    """Write the start of a recipe of your own: a recipe, its network, and a test that passes.

    \b
    Example:
      clew init my_recipe --like tracking
      clew train my_recipe.py --dataset dataset
    """
    from clew.template import write

    for path in write(name, like, folder):
        console.print(f"wrote {bold(path)}")
    console.print(f"Try: [cyan]{sys.executable} -m pytest {folder / f'test_{name}.py'}[/]")
