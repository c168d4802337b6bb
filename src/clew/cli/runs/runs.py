"""`clew runs`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from clew.cli.listing import JsonOption
from clew.cli.options import bold, console, table
from clew.cli.runs.compare import compare
from clew.cli.text_table import coloured_state

app = typer.Typer(help="Runs: list, show, compare, report; of a server: get, push.", no_args_is_help=True)
_RunFolder = Annotated[str, typer.Argument(metavar="RUN", help="Folder or name of the run.")]


@app.command("list")
def list_(
    root: Annotated[Path, typer.Argument(help="Folder with runs.")] = Path("runs"),
    state: Annotated[
        list[str] | None,
        typer.Option(help="Only these: created, running, finished, stopped, failed, ... Repeatable."),
    ] = None,
    where: Annotated[
        str, typer.Option(metavar="QUERY", help="Only matching runs: 'lr < 0.01 and efficiency > 0.9'.")
    ] = "",
    sort: Annotated[
        str,
        typer.Option(metavar="NAME|time", help="Sort by a metric or setting (largest first), or time (newest first)."),
    ] = "name",
    columns: Annotated[
        str, typer.Option(metavar="A,B", help="Settings, metrics and facts that have a column: 'lr,efficiency'.")
    ] = "",
    reverse: Annotated[bool, typer.Option("--reverse", help="Reverse the order.")] = False,
    as_json: JsonOption = False,
    server: Annotated[
        bool, typer.Option("--server", help="List the runs on the server of `clew login` instead.")
    ] = False,
) -> None:
    """List the runs in a folder, one line per run. Columns that do not fit the terminal are dropped.

    \b
    Examples:
      clew runs list
      clew runs list demo/runs --state failed --sort time
      clew runs list --sort loss --reverse
      clew runs list --where 'lr < 0.01' --sort -efficiency --columns lr,hidden,efficiency
      clew runs list --json
      clew runs list --server --state running
    """
    if server:
        from clew.cli.runs.server_runs import ServerList, list_server_runs

        choice = ServerList(state or (), where, "-started" if sort == "name" else sort, columns)
        list_server_runs(choice, as_json=as_json)
        return
    from clew.cli.runs import listing
    from clew.cli.runs.selection import RunValues
    from clew.runs.listing_cache import list_folder

    listed = list_folder(root)
    values = RunValues(listed)
    matching = listing.select_runs(listed, states=state or (), sort=sort, reverse=reverse, values=values)
    if where:
        chosen = {each.path for each in values.matching(where)}
        matching = [each for each in matching if each.path in chosen]
    if as_json:
        typer.echo(listing.as_json(matching))
    elif not matching:
        message = f"none of {len(listed)} runs in {bold(root)} is {' or '.join(state or ()) or 'matched by --where'}"
        console.print(message if listed else f"no runs in {bold(root)}; `clew train` makes one")
    elif columns:
        listing.show_columns(matching, values.columns(columns, matching))
    else:
        listing.show(matching, first=sort.removeprefix("-"))


app.command()(compare)


@app.command()
def show(run: _RunFolder, as_json: JsonOption = False) -> None:
    """Show one run: progress, metrics, and how its time was spent.

    \b
    Examples:
      clew runs show runs/tracking-001
      clew runs show runs/tracking-001 --json
    """
    from clew.cli.runs.scores import show_scores
    from clew.runs import Run
    from clew.runs.advice import communication_advice
    from clew.runs.async_workers import load_workers
    from clew.runs.async_workers import summary_lines as of_workers
    from clew.runs.failure import failure_report
    from clew.runs.summary import summarize

    opened = Run.open(run)
    s, failure = summarize(opened), failure_report(opened)
    if as_json:
        typer.echo(json.dumps({**asdict(s), "evaluations": opened.evaluations()}, indent=1))
        return
    message = escape(failure.message if failure else s.message)
    console.print(f"{bold(s.name)}  {coloured_state(s.state)}  {message}".rstrip())
    last = opened.last("step", opened.main_stream)
    samples = last["samples"] if last else 0
    rows = [
        ("recipe", s.recipe),
        ("epochs", f"{s.epochs_done} of {s.epochs}"),
        ("workers", s.workers),
        ("parameters", f"{s.parameters:,}"),
        ("samples/s", f"{s.times.samples_per_second:,.0f}"),
        ("seconds", f"{s.seconds:.1f}"),
        *([("time per epoch", f"{t:.3g} s")] if (t := s.times.seconds_per_epoch) is not None else []),
        *([("load time", f"{t:.3g} s")] if (t := s.times.load_seconds) is not None else []),
        ("data wait", f"{s.times.data_wait_seconds:.3g} s"),
        *([("samples", s.loading)] if s.loading else []),
        *([("peak memory", f"{s.memory / 1e9:.2f} GB")] if s.memory else []),
        *([("energy", f"{s.energy:,.0f} J, {s.energy / max(samples, 1):.3g} J/sample")] if s.energy else []),
        ("time", ", ".join(f"{name} {share:.1%}" for name, share in s.times.shares.items())),
        *(of_workers(workers) if (workers := load_workers(opened)) else ()),
    ]
    rows += failure.facts.items() if failure else []
    rows += [("advice", advice)] if (advice := communication_advice(s)) else []
    console.print(table(("", ""), rows))
    show_scores(s.metrics, opened.evaluations())


@app.command()
def report(run: _RunFolder) -> None:
    """Write report.html again from the run's records and plots.

    \b
    Example:
      clew runs report runs/tracking-001
    """
    from clew.runs import Run
    from clew.runs.report import write_report

    console.print(bold(write_report(Run.open(run))))


@app.command()
def get(
    number: Annotated[
        int, typer.Argument(metavar="N", help="Number of the run, as `clew runs list --server` prints it.")
    ],
    output: Annotated[Path | None, typer.Option(help="Folder of the run (default: its name under runs/).")] = None,
) -> None:
    """Download a run from the server of `clew login`: settings, records, weights, plots and report.

    \b
    Examples:
      clew runs get 17
      clew runs get 17 --output runs/from-cluster
    """
    from clew.cli.runs.server_runs import get_server_run

    get_server_run(number, output)


@app.command()
def push(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN ...", help="Runs' folders, or folders of runs.")],
    group: Annotated[str | None, typer.Option(help="Share them with this group.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="Give them this tag. Repeatable.")] = None,
    files: Annotated[bool, typer.Option("--files/--no-files", help="Send plots, report and weights too.")] = True,
) -> None:
    """Send runs to the server of `clew login`. Records that the server has are not sent again.

    \b
    Examples:
      clew runs push runs/tracking-001
      clew runs push runs --tag paper --group trackers
    """
    from clew.cli.runs.push import push as push_runs

    push_runs(runs, group=group, tags=tuple(tag or ()), files=files)
