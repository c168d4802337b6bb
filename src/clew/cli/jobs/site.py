"""`clew site`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from clew.cli.options import Settings, bold, console, table

app = typer.Typer(
    help="Clusters: add, list and check profiles; jobs, follow and stop what was handed in.", no_args_is_help=True
)
_Site = Annotated[str, typer.Argument(metavar="SITE", help="Its name, or the profile's file.")]
_Job = Annotated[str, typer.Argument(metavar="JOB", help="The job's folder, or that of what it makes.")]


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="What it is to be called.")],
    file: Annotated[Path | None, typer.Option("--from", help="A profile to begin with.")] = None,
    settings: Settings = None,
    replace: Annotated[bool, typer.Option("--replace", help="Take the place of another.")] = False,
) -> None:
    """Keep the profile of a cluster: what a job needs to know to run there. `clew config schema` lists recipes' keys,
    docs/sites.md those of a site.

    \b
    Examples:
      clew site add mycluster --set scheduler=slurm --set partition=gpu --set gpus=4 --set wall_time=12h
      clew site add mycluster --from group.yaml --set account=hep
      clew site add lxplus --set scheduler=condor
      clew site add panda --set scheduler=panda --set container=docker://registry.example.org/clew:0.1
    """
    from clew.core.config import Document, read_document, validate, with_overrides
    from clew.jobs import sites as sites

    document = read_document(file) if file is not None else Document(source=f"site {name}")
    given = with_overrides(document, settings or ())
    made = validate(sites.Site, Document({**given.data, "name": name}, given.places, given.source))
    path = sites.save_site(made, replace=replace)
    console.print(f"{bold(path)} is there. Next: clew site check {name}")


@app.command("list")
def list_() -> None:
    """The sites there are.

    \b
    Example:
      clew site list
    """
    from clew.errors import ConfigError
    from clew.jobs import sites as sites

    rows: list[tuple[str, ...]] = []
    for name, path in sites.site_profiles().items():
        try:
            site = sites.load_site(name)
            rows.append((name, site.scheduler, site.partition or "", f"{site.wall_time / 60:g} min", str(path)))
        except ConfigError as error:
            rows.append((name, "?", "", "", str(error)))
    if rows:
        console.print(table(("site", "scheduler", "partition", "wall time", "profile"), rows, right=(3,)))
    else:
        console.print(f"no sites in {bold(sites.sites_folder())}; `clew site add` makes one")


@app.command()
def check(site: _Site) -> None:
    """Whether jobs would be taken there: the profile, the scheduler's commands, and a job that is not handed in.

    \b
    Example:
      clew site check mycluster
    """
    from clew.errors import ConfigError
    from clew.jobs import sites as sites
    from clew.jobs.launchers import panda

    found = sites.load_site(site)
    told = panda.problems() if found.scheduler == "panda" else sites.site_launcher(found).problems()
    if told:
        raise ConfigError(f"{found.name}: {'; '.join(each.removeprefix(f'{found.name}: ') for each in told)}")
    console.print(f"{bold(found.name)}: {found.scheduler} takes jobs from here. Next: clew doctor --on {site}")


@app.command()
def jobs(root: Annotated[Path, typer.Argument(help="Where to look.")] = Path()) -> None:
    """The jobs that were handed in for something under a folder.

    \b
    Example:
      clew site jobs
    """
    from clew.cli.text_table import Column, room, write
    from clew.jobs.submitted import submitted_under

    rows: list[tuple[str, ...]] = []
    for sent in submitted_under(root):
        batch = sent.batch
        rows.append((sent.job.id, sent.site, sent.verb, batch.state(sent.job), sent.makes, batch.explain(sent.job)))
    if rows:
        heads = ("job", "site", "verb", "state", "makes", "")
        columns = [Column(head, cells) for head, cells in zip(heads, zip(*rows, strict=True), strict=True)]
        write(columns, width=room())
    else:
        console.print(f"no jobs were handed in under {bold(root)}; `clew train ... --on SITE` does")


@app.command()
def follow(job: _Job) -> None:
    """Watch a job until it ends; Ctrl-C leaves it to itself. Ends with its exit code.

    \b
    Example:
      clew site follow runs/tracking-001
    """
    from clew.cli.jobs.submitted import watch
    from clew.jobs.submitted import find_submitted

    watch(find_submitted(job))


@app.command()
def stop(
    job: _Job,
    now: Annotated[bool, typer.Option("--now", help="Cancel it: no checkpoint is waited for.")] = False,
) -> None:
    """Have a job write a checkpoint and end, or never begin; `clew train --resume` goes on with a run.

    \b
    Examples:
      clew site stop runs/tracking-001
      clew site stop runs/tracking-001 --now
    """
    from clew.jobs.launchers.launcher import watch
    from clew.jobs.submitted import find_submitted

    sent = find_submitted(job)
    batch = sent.batch
    (batch.kill if now else batch.stop)(sent.job)
    for state in watch(batch, sent.job, pause=0.5):
        console.print(f"job {sent.job.id} {state} [dim]{escape(batch.explain(sent.job))}[/]")
