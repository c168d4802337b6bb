"""`clew init`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from clew.cli.options import bold, console


def init(
    name: Annotated[str, typer.Argument(help="What to call it: letters, digits and _.")],
    like: Annotated[
        str,
        typer.Option(help="What to start from: the recipe tracking, hitgraph or jets, or settings such as jets/gru."),
    ] = "tracking",
    folder: Annotated[Path, typer.Option(help="Where the files go.")] = Path(),
) -> None:
    """Write the start of a recipe of your own: a recipe, its network, and a test that passes. Or a YAML of settings.

    \b
    Examples:
      clew init my_recipe --like tracking
      clew train my_recipe.py --dataset dataset
      clew init tagger --like jets/gru
      clew train tagger.yaml --dataset dataset
    """
    from clew.cli.start.recipe_template import write

    written = write(name, like, folder)
    for path in written:
        console.print(f"wrote {bold(path)}")
    if written[0].suffix == ".yaml":
        console.print(f"Its first lines say how it is used. All settings: [cyan]clew config show {written[0]}[/]")
        return
    console.print(f"Try: [cyan]{sys.executable} -m pytest {folder / f'test_{name}.py'}[/]")
