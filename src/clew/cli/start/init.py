"""`clew init`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from clew.cli.options import bold, console

EXAMPLE = "small"
"""What the new recipe starts from, unless the user names another one."""


def init(
    name: Annotated[str, typer.Argument(help="Name of the new recipe: letters, digits and _.")],
    like: Annotated[
        str,
        typer.Option(
            help="What to start from: small, the recipes tagger (a complete example), tracking, hitgraph, jets, lartpc "
            "or particleflow, or settings such as jets/gru."
        ),
    ] = EXAMPLE,
    folder: Annotated[Path, typer.Option(help="Folder to write the files to.")] = Path(),
) -> None:
    """Write a recipe of your own that works as it is, with a test; or a YAML file of settings.

    \b
    Examples:
      clew init my_tagger
      clew init my_tagger --like tagger
      clew init my_recipe --like tracking
      clew init my_settings --like jets/gru
      clew train my_settings.yaml --dataset dataset
    """
    from clew.cli.start.recipe_template import write_recipe

    paths = write_recipe(name, like, folder)
    for path in paths:
        console.print(f"wrote {bold(path)}")
    if paths[0].suffix == ".yaml":
        console.print(f"Its first lines say how to use it. All settings: [cyan]clew config show {paths[0]}[/]")
        return
    console.print(f"Try: [cyan]{sys.executable} -m pytest {folder / f'test_{name}.py'}[/]")
