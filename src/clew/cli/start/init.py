"""`clew init`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from clew.cli.options import bold, console
from clew.errors import ConfigError

EXAMPLE = "small"
"""What the new recipe starts from, unless the user names another one."""


def init(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME [NETWORK.py]",
            help="Name of the new recipe: letters, digits and _. With --from-weaver also the file of the network.",
        ),
    ] = None,
    like: Annotated[
        str,
        typer.Option(
            help="What to start from: small, the recipes tagger (a complete example), tracking, hitgraph, jets, lartpc "
            "or particleflow, or settings such as jets/gru."
        ),
    ] = EXAMPLE,
    from_weaver: Annotated[
        Path | None, typer.Option(metavar="DATA.yaml", help="Start from a data configuration of weaver.")
    ] = None,
    from_nnlo: Annotated[
        str | None,
        typer.Option(metavar="COMMAND", help="Start from a command line of NNLO or mpi_learn, or a script with one."),
    ] = None,
    from_ariadne: Annotated[
        Path | None, typer.Option(metavar="FILE.cfg", help="Start from gin files of Ariadne.")
    ] = None,
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
      clew init --from-weaver top.yaml network.py
      clew init first --from-nnlo 'mpirun -np 3 ./MPIDriver.py cnn.json train.txt val.txt --epochs 3'
      clew init graphs --from-ariadne prepare.cfg train.cfg
    """
    words = words or []
    if from_weaver is not None:
        from clew.cli.start.from_weaver import write_from_weaver

        write_from_weaver(words, from_weaver, folder)
        return
    if from_nnlo is not None:
        from clew.cli.start.from_others import write_from_nnlo

        write_from_nnlo(words, from_nnlo, folder)
        return
    if from_ariadne is not None:
        from clew.cli.start.from_others import write_from_ariadne

        write_from_ariadne(words, from_ariadne, folder)
        return
    if len(words) != 1:
        raise ConfigError("clew init takes one name, as in: clew init my_recipe")
    _write_like(words[0], like, folder)


def _write_like(name: str, like: str, folder: Path) -> None:
    from clew.cli.start.recipe_template import write_recipe

    paths = write_recipe(name, like, folder)
    for path in paths:
        console.print(f"wrote {bold(path)}")
    if paths[0].suffix == ".yaml":
        console.print(f"Its first lines say how to use it. All settings: [cyan]clew config show {paths[0]}[/]")
        return
    console.print(f"Try: [cyan]{sys.executable} -m pytest {folder / f'test_{name}.py'}[/]")
