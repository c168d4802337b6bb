"""`clew site`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clew.cli.listing import ColumnsOption, JsonOption, SortOption, print_list
from clew.cli.options import Settings, bold, console

app = typer.Typer(help="Clusters: add, list and check profiles; list the jobs submitted there.", no_args_is_help=True)
_Site = Annotated[str, typer.Argument(metavar="SITE", help="Its name, or the profile's file.")]


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="Its name.")],
    file: Annotated[Path | None, typer.Option("--from", help="A profile to start from.")] = None,
    settings: Settings = None,
    replace: Annotated[bool, typer.Option("--replace", help="Overwrite a profile of this name.")] = False,
) -> None:
    """Save the profile of a cluster: what a job needs to run there. docs/howto/sites.md lists the keys.

    \b
    Examples:
      clew site add mycluster --set scheduler=slurm --set partition=gpu --set gpus=1 --set wall_time=12h
      clew site add mycluster --from group.yaml --set account=hep
      clew site add lxplus --set scheduler=condor
      clew site add panda --set scheduler=panda --set container=docker://registry.example.org/clew:0.1
    """
    from clew.core.config import Document, read_document, validate, with_overrides
    from clew.jobs import sites as sites

    document = read_document(file) if file is not None else Document(source=f"site {name}")
    changed = with_overrides(document, settings or ())
    site = validate(sites.Site, Document({**changed.data, "name": name}, changed.places, changed.source))
    path = sites.save_site(site, replace=replace)
    console.print(f"{bold(path)} is saved. Next: clew site check {name}")


@app.command("list")
def list_(sort: SortOption = "", columns: ColumnsOption = "", as_json: JsonOption = False) -> None:
    """List the sites.

    \b
    Examples:
      clew site list
      clew site list --json
    """
    from clew.errors import ConfigError
    from clew.jobs import sites as sites

    rows: list[dict[str, object]] = []
    for name, path in sites.site_profiles().items():
        try:
            site = sites.load_site(name)
            facts = {"scheduler": site.scheduler, "partition": site.partition or "", "minutes": site.wall_time / 60}
            rows.append({"site": name, **facts, "profile": str(path)})
        except ConfigError as error:
            rows.append({"site": name, "scheduler": "?", "profile": str(error)})
    if rows or as_json:
        shown = ("site", "scheduler", "partition", "minutes", "profile")
        print_list(rows, shown, sort=sort, chosen=columns, as_json=as_json)
    else:
        console.print(f"no sites in {bold(sites.sites_folder())}; `clew site add` makes one")


@app.command()
def check(site: _Site) -> None:
    """Check whether a site would accept jobs: the profile, the scheduler's commands, and a trial submission.

    \b
    Example:
      clew site check mycluster
    """
    from clew.errors import ConfigError
    from clew.jobs import sites as sites

    profile = sites.load_site(site)
    problems = sites.scheduler_at(profile).problems()
    if problems:
        prefix = f"{profile.name}: "
        raise ConfigError(f"{prefix}{'; '.join(problem.removeprefix(prefix) for problem in problems)}")
    console.print(f"{bold(profile.name)}: {profile.scheduler} accepts jobs from here. Next: clew doctor --on {site}")


@app.command()
def jobs(
    root: Annotated[Path, typer.Argument(help="The folder to search.")] = Path(), as_json: JsonOption = False
) -> None:
    """List the jobs that were submitted to sites for something under a folder.

    \b
    Examples:
      clew site jobs
      clew site jobs --json
    """
    from clew.cli.jobs.submitted import submitted_facts, write_submitted
    from clew.jobs.submitted import submitted_under

    jobs = submitted_under(root)
    if as_json:
        print_list([submitted_facts(job) for job in jobs], (), as_json=True)
    elif jobs:
        write_submitted(jobs)
    else:
        console.print(f"no jobs were submitted under {bold(root)}; `clew train ... --on SITE` submits one")
