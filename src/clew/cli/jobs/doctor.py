"""`clew doctor`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from clew.cli.options import console

if TYPE_CHECKING:
    from clew.jobs.doctor import Finding

_SIGNS = {"good": "[green]ok  [/]", "note": "[yellow]note[/]", "bad": "[red]bad [/]"}


def doctor(
    on: Annotated[
        str | None, typer.Option(metavar="SITE", help="Also hand in a job that looks the nodes over.")
    ] = None,
    nodes: Annotated[int, typer.Option(min=1, help="How many nodes, with --on.")] = 1,
    folder: Annotated[Path, typer.Option(help="Where runs are to be made.")] = Path(),
    as_json: Annotated[bool, typer.Option("--json", help="For other programs.")] = False,
    site: Annotated[str | None, typer.Option(hidden=True, help="Judge as a node of this site.")] = None,
    into: Annotated[Path | None, typer.Option(hidden=True, help="With --site: a folder for what was found.")] = None,
) -> None:
    """Check everything that a run needs, and say what to do where something is wrong. Ends with 1 if a run would fail.

    \b
    Examples:
      clew doctor
      clew doctor --on mycluster --nodes 2
      clew doctor --json
    """
    from clew.core.files import write_text
    from clew.jobs import doctor as work
    from clew.jobs import rank_info
    from clew.jobs import sites as sites

    named = on or site
    wanted = sites.load_site(named) if named else None
    found = [*([work.scheduler(wanted)] if site is None else ()), *([work.storage(wanted)] if wanted else ())]
    found += work.examine(folder.absolute(), wanted if site else None, server=os.environ.get("CLEW_SERVER"))
    told: dict[str, Any] = {"host": os.uname().nodename, "findings": [asdict(each) for each in found]}
    hosts = [told]
    if into is not None:
        write_text(into / f"{rank_info.current_rank().rank}.json", json.dumps(told))
        return
    if site is None and not as_json:
        _show(told["host"], found)
    if on is not None and found[0].verdict != "bad":
        hosts += _at(on, nodes, quiet=as_json)
    if as_json:
        typer.echo(json.dumps({"hosts": hosts}))
    if any(each["verdict"] == "bad" for host in hosts for each in host["findings"]):
        raise typer.Exit(1)


def _show(host: str, found: Iterable[Finding]) -> None:
    console.print(f"[bold]{host}[/]")
    for each in found:
        console.print(f"  {_SIGNS[each.verdict]} {each.name}: {escape(each.told)}")
        if each.do:
            console.print(f"       [dim]{escape(each.do)}[/]")


def _at(name: str, nodes: int, *, quiet: bool) -> list[dict[str, Any]]:
    """What the doctor finds on the nodes of a site.

    Raises:
        JobError: the job did not even get there.
    """
    import tempfile

    from clew.cli.jobs.submitted import told
    from clew.errors import JobError
    from clew.jobs.doctor import Finding
    from clew.jobs.launchers.launcher import watch
    from clew.jobs.sites import BatchRequest
    from clew.jobs.submitted import submit

    with tempfile.TemporaryDirectory(dir=".", prefix=".clew-doctor-") as folder:
        needs = BatchRequest(name="doctor", nodes=nodes, ranks=nodes, wall_time=300)
        words = ["doctor", "--site", name, "--into", str(Path(folder).absolute())]
        sent = submit(name, words, needs=needs, folder=Path(folder) / "job")
        for state in watch(sent.batch, sent.job, pause=0.5):
            if not quiet:
                console.print(f"job {sent.job.id} [dim]{state} {escape(sent.batch.explain(sent.job))}[/]")
        hosts = [json.loads(file.read_text()) for file in sorted(Path(folder).glob("*.json"))]
        if len(hosts) < nodes:
            raise JobError(f"{len(hosts)} of {nodes} nodes answered: {told(sent, state).partition(' (see ')[0]}")
    if not quiet:
        for host in hosts:
            _show(f"{host['host']} (a node of {name})", [Finding(**each) for each in host["findings"]])
    return hosts
