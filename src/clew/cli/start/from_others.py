"""`clew init --from-nnlo` and `--from-ariadne`: a command or settings from those of other programs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from clew.cli.options import bold, console
from clew.cli.start.from_weaver import default_name
from clew.core.config import to_yaml
from clew.core.files import write_text
from clew.errors import ConfigError, RecipeError


def write_from_nnlo(words: Sequence[str], command: str, folder: Path) -> None:
    """Write a script with the command of clew that does what a command of NNLO or mpi_learn does.

    Args:
        words: The arguments: the name of the script, or nothing.
        command: The command line, or the name of a script that has it.
        folder: Where the script goes.
    """
    from clew.models.nnlo import convert, is_script

    made = convert(command)
    path = _new_file(folder / f"{_name(words, Path(made.model))}.sh")
    source = command if is_script(command) else "a command line"
    write_text(path, made.script(source))
    console.print(f"wrote {bold(path)}")
    for line in made.differences:
        console.print(f"different: {line}", markup=False)
    console.print(f"Next: [cyan]sh {path}[/]")


def write_from_ariadne(words: Sequence[str], file: Path, folder: Path) -> None:
    """Write settings of a tracking recipe from gin files of Ariadne.

    Args:
        words: The arguments: a second gin file, the name of the settings; both may be missing.
        file: The gin file.
        folder: Where the settings go.
    """
    from clew.models.ariadne import convert

    more = [word for word in words if Path(word).suffix in (".cfg", ".gin")]
    made = convert([file, *map(Path, more)])
    path = _new_file(folder / f"{_name([word for word in words if word not in more], file)}.yaml")
    notes = "".join(f"# - {line}\n" for line in made.differences) or "# - nothing\n"
    head = f"# Made by `clew init --from-ariadne` from {file.name}. What is different:\n{notes}"
    write_text(path, head + to_yaml({"recipe": made.recipe, **made.settings}))
    console.print(f"wrote {bold(path)}: settings of the recipe {made.recipe}")
    for line in made.differences:
        console.print(f"different: {line}", markup=False)
    inputs = made.inputs or "FILES"
    console.print(f"Next: clew prepare {path} --input '{inputs}' --output dataset", markup=False)


def _name(words: Sequence[str], source: Path) -> str:
    if len(words) > 1:
        raise ConfigError(f"clew init takes one name, not {', '.join(words)}")
    return words[0] if words else default_name(source)


def _new_file(path: Path) -> Path:
    if path.exists():
        raise RecipeError(f"{path} exists already; choose another name or folder")
    return path
