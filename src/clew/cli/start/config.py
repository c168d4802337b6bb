"""`clew config`."""

from __future__ import annotations

import json

import typer

from clew.cli.options import Settings, What

app = typer.Typer(help="Settings: show, schema.", no_args_is_help=True)


@app.command()
def show(recipe: What, settings: Settings = None) -> None:
    """Print every setting with its value, as YAML that other commands read.

    \b
    Examples:
      clew config show tracking > my.yaml
      clew config show my.yaml --set train.epochs=5
    """
    from clew.core.config import to_yaml
    from clew.settings import load_settings

    typer.echo(to_yaml(load_settings(recipe, settings or ()).data), nl=False)


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
