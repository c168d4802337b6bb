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
from clew.jobs.task import DoctorTask

if TYPE_CHECKING:
    from clew.jobs.doctor import Finding

_SIGNS = {"good": "[green]ok  [/]", "note": "[yellow]note[/]", "bad": "[red]bad [/]"}


def doctor(
    on: Annotated[
        str | None, typer.Option(metavar="SITE", help="Also submit a job that checks the nodes of this site.")
    ] = None,
    nodes: Annotated[int, typer.Option(min=1, help="The number of nodes, with --on.")] = 1,
    folder: Annotated[Path, typer.Option(help="The folder for runs.")] = Path(),
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Check everything that a run needs, and say what to do where something is wrong.

    Exits with 1 if a run would fail.

    \b
    Examples:
      clew doctor
      clew doctor --on mycluster --nodes 2
      clew doctor --json
    """
    from clew.jobs import doctor as checks
    from clew.jobs.sites import load_site

    site = load_site(on) if on else None
    findings = [checks.scheduler(site), *([checks.storage(site)] if site else ())]
    findings += checks.examine(folder.absolute(), None, server=os.environ.get("CLEW_SERVER"))
    host = {"host": os.uname().nodename, "findings": [asdict(finding) for finding in findings]}
    hosts: list[dict[str, Any]] = [host]
    if not as_json:
        _show(os.uname().nodename, findings)
    if on is not None and findings[0].verdict != "bad":
        hosts += _check_nodes(on, nodes, quiet=as_json)
    if as_json:
        typer.echo(json.dumps({"hosts": hosts}))
    if any(finding["verdict"] == "bad" for host in hosts for finding in host["findings"]):
        raise typer.Exit(1)


def check_node(task: DoctorTask, index: int | None) -> None:
    """The checks on a node of a site; each rank writes its own file."""
    from clew.core.files import write_text
    from clew.jobs import doctor as checks
    from clew.jobs.rank_info import current_rank
    from clew.jobs.sites import load_site

    site = load_site(task.site)
    findings = [checks.storage(site), *checks.examine(Path.cwd(), site, server=os.environ.get("CLEW_SERVER"))]
    host = {"host": os.uname().nodename, "findings": [asdict(finding) for finding in findings]}
    write_text(Path(task.folder) / f"{current_rank().rank}.json", json.dumps(host))


def _show(host: str, findings: Iterable[Finding]) -> None:
    console.print(f"[bold]{host}[/]")
    for finding in findings:
        console.print(f"  {_SIGNS[finding.verdict]} {finding.name}: {escape(finding.message)}")
        if finding.advice:
            console.print(f"       [dim]{escape(finding.advice)}[/]")


def _check_nodes(name: str, nodes: int, *, quiet: bool) -> list[dict[str, Any]]:
    """What the checks find on the nodes of a site.

    Raises:
        JobError: the job did not run on all nodes.
    """
    import tempfile

    from clew.cli.jobs.submitted import failure_message
    from clew.errors import JobError
    from clew.jobs.doctor import Finding
    from clew.jobs.launchers.launcher import watch
    from clew.jobs.sites import BatchRequest
    from clew.jobs.submitted import submit

    with tempfile.TemporaryDirectory(dir=".", prefix=".clew-doctor-") as folder:
        request = BatchRequest(name="doctor", nodes=nodes, workers=nodes, wall_time=300)
        task = DoctorTask(site=name, folder=str(Path(folder).absolute()))
        submitted = submit(name, task, request=request, folder=Path(folder) / "job")
        launcher, job = submitted.launcher, submitted.job
        for state in watch(launcher, job, pause=0.5):
            if not quiet:
                console.print(f"job {job.id} [dim]{state} {escape(launcher.explain(job))}[/]")
        hosts = [json.loads(file.read_text()) for file in sorted(Path(folder).glob("*.json"))]
        if len(hosts) < nodes:
            message = failure_message(submitted, state).partition(" (see ")[0]
            raise JobError(f"{len(hosts)} of {nodes} nodes answered: {message}")
    if not quiet:
        for host in hosts:
            _show(f"{host['host']} (a node of {name})", [Finding(**each) for each in host["findings"]])
    return hosts
