"""`clew model`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clew.cli.options import bold, console, program
from clew.cli.text_table import Column, room, write
from clew.cli.transfer_progress import moving
from clew.errors import ConfigError, nearest

if TYPE_CHECKING:
    from clew.storage.models import StoredModel

app = typer.Typer(help="Models in a store: find, get, put.", no_args_is_help=True)
_METRICS = 4
"""Numbers that get a column where there is room."""


@app.command()
def find(
    place: Annotated[str, typer.Argument(help="A folder, s3://bucket/models, root://host//path or rucio:SCOPE.")],
    where: Annotated[str | None, typer.Option(help="A condition on their numbers, as 'val_loss < 0.2'.")] = None,
    sort: Annotated[str | None, typer.Option(help="By this number, the smallest first.")] = None,
    json: Annotated[bool, typer.Option("--json", help="All that is known, for other programs.")] = False,
) -> None:
    """The models kept at a place, those for which a condition holds.

    \b
    Examples:
      clew model find rucio:user.me --where 'val_loss < 0.2'
      clew model find s3://bucket/models --where 'test_accuracy > 0.9 and epoch < 50' --sort val_loss
      clew model find models --json
    """
    from clew.storage import models

    found = models.find_models(place, where)
    if sort is not None:
        found = _sorted(found, sort)
    if json:
        import json as text

        console.print_json(text.dumps([{"location": each.location, **each.facts} for each in found]))
    elif found:
        _show(found, sort)
    else:
        console.print(f"no model at {bold(place)}{' for which that holds' if where else ''}")


@app.command()
def get(
    location: Annotated[str, typer.Argument(help="A model, as `clew model find` names it.")],
    output: Annotated[Path | None, typer.Option(help="The folder it goes to (default: runs/NAME).")] = None,
) -> None:
    """Bring a model from a store; every file is compared with what was stored.

    \b
    Examples:
      clew model get rucio:user.me:tracking-001-1a2b3c4d
      clew model get s3://bucket/models/tracking-001-1a2b3c4d --output model
    """
    from clew import storage
    from clew.storage import models

    target = output or Path("runs") / storage.base_name(location)
    with moving("get") as show:
        run = models.fetch_model(location, target, watch=show)
    console.print(f"{bold(run.path)}: checked. Next: {program()} evaluate {bold(run.path)}")


@app.command()
def put(
    run: Annotated[str, typer.Argument(help="The run's folder.")],
    to: Annotated[str, typer.Argument(help="A folder, s3://bucket/models, root://host//path or rucio:SCOPE?rse=SITE.")],
    name: Annotated[str | None, typer.Option(help="What it is called there (default: run and hash).")] = None,
    what: Annotated[
        list[str] | None,
        typer.Option(help="model, plots, report, records, checkpoints or all. Repeatable (default: the first three)."),
    ] = None,
) -> None:
    """Keep a run's model in a store, with the metrics, settings and data it is found by.

    \b
    Examples:
      clew model put runs/tracking-001 s3://bucket/models
      clew model put runs/tracking-001 'rucio:user.me?rse=SITE_DISK' --what all
    """
    from clew.core.config import Document, validate
    from clew.runs import Run
    from clew.storage import models
    from clew.storage.models import StoreConfig

    asked = {"to": to, "name": name, **({"what": what} if what else {})}
    wish = validate(StoreConfig, Document(asked, source="clew model put"))
    with moving("put") as show:
        place = models.store_model(Run.open(run), wish.to, wish.what, name=wish.name, watch=show)
    console.print(f"{bold(place)}: stored")


def _sorted(found: list[StoredModel], name: str) -> list[StoredModel]:
    known = {key for each in found for key, value in each.facts.items() if isinstance(value, (int, float))}
    if found and name not in known:
        raise ConfigError(f"--sort {name}: no model has a number of that name{nearest(name, known)}")
    return sorted(found, key=lambda each: (name not in each.facts, each.facts.get(name, 0)))


def _show(found: list[StoredModel], first: str | None) -> None:
    names = dict.fromkeys(key for each in found for key, value in each.facts.items() if isinstance(value, float))
    ordered = sorted(names, key=lambda name: (name != first, not name.startswith("val_")))[:_METRICS]
    columns = [Column("model", [each.location for each in found])]
    for place, name in enumerate(ordered):
        values = [each.facts.get(name) for each in found]
        told = ["" if value is None else f"{value:.4f}" for value in values]
        columns.append(Column(name, told, rank=place + 1, right=True))
    for place, name in enumerate(("recipe", "epoch")):
        columns.append(Column(name, [str(each.facts.get(name, "")) for each in found], rank=6 + place))
    write(columns, width=room())
