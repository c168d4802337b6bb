"""`clew config`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated

import typer

from clew.cli.options import Settings, What, console

app = typer.Typer(help="Settings: show, schema.", no_args_is_help=True)


@app.command()
def show(
    recipe: What,
    settings: Settings = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Print the meaning and the type of every setting.")
    ] = False,
) -> None:
    """Print every setting with its value, as YAML that other commands read.

    \b
    Examples:
      clew config show tracking > my.yaml
      clew config show my.yaml --set train.epochs=5
      clew config show tracking --explain
    """
    if explain:
        _explain(recipe, settings or ())
        return
    from clew.core.config import to_yaml
    from clew.settings import load_settings

    typer.echo(to_yaml(load_settings(recipe, settings or ()).data), nl=False)


def _explain(recipe: str, settings: Sequence[str]) -> None:
    from rich.markup import escape

    from clew.core.setting_text import setting_texts
    from clew.settings import load_settings, settings_schema

    loaded = load_settings(recipe, settings)
    for each in setting_texts(settings_schema(type(loaded.recipe)), loaded.data):
        console.print(f"[bold]{escape(each.key)}[/]: {escape(each.value)}  [dim]({escape(each.type)})[/]")
        if each.meaning:
            console.print(f"    {escape(each.meaning)}")


@app.command()
def schema(recipe: What) -> None:
    """Print the JSON schema of a recipe's settings, for editors and other programs.

    \b
    Example:
      clew config schema tracking > tracking.schema.json
    """
    from clew.settings import load_settings, settings_schema

    loaded = load_settings(recipe)
    typer.echo(json.dumps(settings_schema(type(loaded.recipe)).model_json_schema(), indent=2))
