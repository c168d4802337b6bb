"""`clew evaluate FILE --against FILE`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clew.cli.options import bold, console, printed_warnings
from clew.errors import ConfigError


def evaluate_files(
    generated: str, against: Sequence[str], recipe: str | None, settings: Sequence[str], output: str | None
) -> Any:
    """Compare files, write the report, and return the evaluation.

    Raises:
        ConfigError: There is no recipe, or it has no comparison.
    """
    if not recipe:
        raise ConfigError("--against needs the recipe that reads the files: --recipe fastsim")
    from clew.inference import file_evaluation
    from clew.settings import load_settings

    loaded = load_settings(recipe, list(settings))
    path = Path(output or f"{Path(generated).stem}-against-{Path(against[0]).stem}.html")
    with console.status("comparing"), printed_warnings():
        result = file_evaluation.evaluate_files(loaded.recipe, [generated], against, output=path)
    console.print(f"report: {bold(result.report)}")
    return result.evaluation


def check_options(options: Mapping[str, Any], against: Sequence[str] | None) -> None:
    """Check that options of files and options of runs are not mixed.

    Args:
        options: Values by option; those that are empty were not used.
        against: The value of `--against`.

    Raises:
        ConfigError: An option does not belong to the form of the command.
    """
    of_files = {"--recipe", "--set", "--output"}
    for name, value in options.items():
        if value and (name in of_files) != bool(against):
            raise ConfigError(
                f"{name} evaluates a file against a file: add --against FILE"
                if name in of_files
                else f"{name} is for runs, and --against compares a file with a file"
            )
