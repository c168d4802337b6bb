"""`clew model`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clew.cli.options import bold, console, program
from clew.cli.text_table import Column, line_width, write
from clew.cli.transfer_progress import show_transfers
from clew.errors import ConfigError, nearest

if TYPE_CHECKING:
    from clew.storage.models import StoredModel

app = typer.Typer(help="Trained models: those of clew, and in a store: find, get, put.", no_args_is_help=True)
_METRICS = 4
"""Metrics that have a column."""


@app.command("list")
def list_shipped(
    json: Annotated[bool, typer.Option("--json", help="Print all facts as JSON.")] = False,
) -> None:
    """List the trained models that are part of clew.

    They can be named wherever a run can. The first use copies a model to runs/NAME.

    \b
    Examples:
      clew model list
      clew predict tracking-bes3 --input events.txt
      clew train tracking --from tracking-bes3 --lr 1e-4 --set 'train.freeze=["edge*"]'
    """
    from clew.storage.models import find_models
    from clew.storage.models.shipped import FOLDER, shipped_names

    stored = find_models(str(FOLDER)) if shipped_names() else []
    if json:
        import json as text

        console.print_json(text.dumps([{"name": Path(each.location).name, **each.facts} for each in stored]))
        return
    facts = [each.facts for each in stored]
    columns = [Column("model", [Path(each.location).name for each in stored])]
    columns += [Column("recipe", [str(each["recipe"]) for each in facts])]
    columns += [Column("trained on", [str(each["trained_on"]) for each in facts], rank=2)]
    columns += [Column("figures", [_figures(each["check"]["figures"]) for each in facts], rank=1)]
    write(columns, width=line_width())


def _figures(figures: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.3f}" for name, value in figures.items())


@app.command()
def find(
    place: Annotated[str, typer.Argument(help="A folder, s3://bucket/models, root://host//path or rucio:SCOPE.")],
    where: Annotated[str | None, typer.Option(help="A condition on metrics: 'val_loss < 0.2'.")] = None,
    sort: Annotated[str | None, typer.Option(help="Sort by this metric, the smallest first.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print all facts as JSON.")] = False,
) -> None:
    """List the models in a store, or those for which a condition holds.

    \b
    Examples:
      clew model find rucio:user.me --where 'val_loss < 0.2'
      clew model find s3://bucket/models --where 'test_accuracy > 0.9 and epoch < 50' --sort val_loss
      clew model find models --json
    """
    from clew.storage import models

    stored = models.find_models(place, where)
    if sort is not None:
        stored = _sorted(stored, sort)
    if json:
        import json as text

        console.print_json(text.dumps([{"location": each.location, **each.facts} for each in stored]))
    elif stored:
        _show(stored, sort)
    else:
        console.print(f"no model at {bold(place)}{f' with {where}' if where else ''}")


@app.command()
def get(
    location: Annotated[str, typer.Argument(help="Location of a model, as `clew model find` prints it.")],
    output: Annotated[Path | None, typer.Option(help="Target folder (default: runs/NAME).")] = None,
    trust: Annotated[bool, typer.Option("--trust", help="Run the code that it brings, now and later.")] = False,
) -> None:
    """Copy a model from a store; the checksum of every file is checked. Code that it brings is named.

    \b
    Examples:
      clew model get rucio:user.me:tracking-001-1a2b3c4d
      clew model get s3://bucket/models/tracking-001-1a2b3c4d --output model
    """
    from clew import storage
    from clew.runs.run_trust import code_names, is_run_trusted, trust_run
    from clew.storage import models

    target = output or Path("runs") / storage.base_name(location)
    with show_transfers("get") as show:
        run = models.fetch_model(location, target, watch=show)
    names, trusted = code_names(run), trust or is_run_trusted(run)
    if trust:
        trust_run(run)
    if names:
        state = "trusted" if trusted else "not trusted: read it first"
        console.print(f"{bold(run.path)}: brings code ({state}): {', '.join(names)}", markup=False)
    more = "" if trusted else " --trust"
    console.print(f"{bold(run.path)}: checked. Next: {program()} evaluate {bold(run.path)}{more}")


@app.command()
def trust(
    place: Annotated[Path, typer.Argument(help="Folder of a run, or a file with a model.")],
) -> None:
    """Trust the code of a run or a model that came from elsewhere: it may run as you. Read it first.

    The decision is remembered by content. If the code changes, clew asks again.

    \b
    Examples:
      clew model trust runs/tagger-001
      clew model trust tagger.pt2
    """
    from clew.core.trust import trust_file

    if place.is_file() or place.suffix == ".savedmodel":
        trust_file(place)
        console.print(f"{bold(place)}: trusted")
        return
    from clew.runs import Run
    from clew.runs.run_trust import code_names, trust_run

    run = Run.open(place)
    trust_run(run)
    console.print(f"{bold(run.path)}: trusted: {', '.join(code_names(run)) or 'it brings no code'}")


@app.command()
def put(
    run: Annotated[str, typer.Argument(help="Folder of the run.")],
    to: Annotated[str, typer.Argument(help="A folder, s3://bucket/models, root://host//path or rucio:SCOPE?rse=SITE.")],
    name: Annotated[str | None, typer.Option(help="Name in the store (default: run and hash).")] = None,
    what: Annotated[
        list[str] | None,
        typer.Option(help="model, plots, report, records, checkpoints or all. Repeatable (default: the first three)."),
    ] = None,
) -> None:
    """Copy a run's model to a store, with its metrics, settings and the facts of its data.

    \b
    Examples:
      clew model put runs/tracking-001 s3://bucket/models
      clew model put runs/tracking-001 'rucio:user.me?rse=SITE_DISK' --what all
    """
    from clew.core.config import Document, validate
    from clew.runs import Run
    from clew.storage import models
    from clew.storage.models import StoreConfig

    options = {"to": to, "name": name, **({"what": what} if what else {})}
    config = validate(StoreConfig, Document(options, source="clew model put"))
    with show_transfers("put") as show:
        place = models.store_model(Run.open(run), config.to, config.what, name=config.name, watch=show)
    console.print(f"{bold(place)}: stored")


def _sorted(stored: list[StoredModel], name: str) -> list[StoredModel]:
    names = {key for each in stored for key, value in each.facts.items() if isinstance(value, (int, float))}
    if stored and name not in names:
        raise ConfigError(f"--sort {name}: no model has such a metric{nearest(name, names)}")
    return sorted(stored, key=lambda each: (name not in each.facts, each.facts.get(name, 0)))


def _show(stored: list[StoredModel], first: str | None) -> None:
    names = dict.fromkeys(key for each in stored for key, value in each.facts.items() if isinstance(value, float))
    ordered = sorted(names, key=lambda name: (name != first, not name.startswith("val_")))[:_METRICS]
    columns = [Column("model", [each.location for each in stored])]
    for index, name in enumerate(ordered):
        values = [each.facts.get(name) for each in stored]
        cells = ["" if value is None else f"{value:.4f}" for value in values]
        columns.append(Column(name, cells, rank=index + 1, right=True))
    for index, name in enumerate(("recipe", "epoch")):
        columns.append(Column(name, [str(each.facts.get(name, "")) for each in stored], rank=6 + index))
    write(columns, width=line_width())
