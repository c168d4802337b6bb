"""Profiles of clusters: who schedules there, and what a job needs to find its way. One YAML a site.

They lie in `sites/` in the user's config folder (or where $CLEW_SITES says); `--on SITE` takes a name or a file.
"""

from __future__ import annotations

import importlib
import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from clew.core.config import Section, parse_seconds, read_document, to_data, to_yaml, validate
from clew.core.files import write_text
from clew.errors import ConfigError, nearest
from clew.jobs.launchers.launcher import LAUNCHERS, LaunchedJob, Launcher

SCHEDULERS = ("slurm", "condor", "panda")
_MEMORY = re.compile(r"\d+[KMGT]?")


def _seconds(given: Any) -> Any:
    return parse_seconds(given, "a length of time,") if isinstance(given, str) else given


def _memory(given: str) -> str:
    if not _MEMORY.fullmatch(given):
        raise ValueError(f"expected a size as 16G, not '{given}'")
    return given


def _one_line(given: str) -> str:
    if "\n" in given:
        raise ValueError("one line each")
    return given


Seconds = Annotated[float, BeforeValidator(_seconds), Field(gt=0)]
"""A number, or as people write it: 90s, 30m, 12h."""
Memory = Annotated[str, AfterValidator(_memory)]
Line = Annotated[str, AfterValidator(_one_line)]
Count = Annotated[int, Field(ge=1)]


class PandaConfig(Section):
    """What a task of PanDA's needs beside the container, which has clew and the recipe in it."""

    out: str | None = None
    """The outputs' dataset: `user.me.{name}`; {name} is the job's."""
    cloud: str | None = None
    queue: str | None = None
    """Where it must run; default: PanDA chooses."""
    scope: str = "user"
    arguments: tuple[Line, ...] = ()
    """More of prun's or phpo's, as they take them."""


class Site(Section):
    """A cluster as a job sees it."""

    name: str = ""
    """Default: the file's."""
    scheduler: Literal["slurm", "condor", "panda"]
    partition: Line | None = None
    account: Line | None = None
    modules: tuple[Line, ...] = ()
    """Loaded by `module load` before anything else."""
    setup: tuple[Line, ...] = ()
    """Lines of shell after that, as `source /shared/venv/bin/activate`."""
    environment: dict[str, str] = {}
    container: Line | None = None
    """An image with clew in it, run by Apptainer on the nodes (by PanDA's own means there)."""
    container_options: tuple[Line, ...] = ()
    """Of `apptainer exec`, as `--nv` or `--bind=/data`."""
    python: Line | None = None
    """The Python on the nodes that has clew; default: the one that submits, `python3` in a container."""
    scratch: Line | None = None
    """A fast folder that all nodes see; the cache of prepare goes there."""
    mpi: Line | None = None
    """How srun starts MPI: pmi2, pmix, ... (`srun --mpi=list`); None: the cluster's default."""
    interface: Line | None = None
    """The network that ranks talk over, as hsn0 or ib0; default: what the host's name leads to."""
    cpus: Count = 1
    """For each rank."""
    gpus: Annotated[int, Field(ge=0)] = 0
    """For each node."""
    memory: Memory | None = None
    """For each node: 16G."""
    wall_time: Seconds = 3600
    """What jobs ask for, and may ask for at most where `wall_time_limit` is not given."""
    wall_time_limit: Seconds | None = None
    grace: Seconds = 120
    """How long before the end a job is told to write a checkpoint; at most a quarter of its time."""
    requeue: bool = True
    """Whether a run that was stopped by its wall time goes back to the queue by itself."""
    storage: Line | None = None
    """Where data and models of this site lie: a folder or a URL."""
    directives: tuple[Line, ...] = ()
    """More lines for the scheduler, as `--constraint=a100` (Slurm) or `+JobFlavour = "longlunch"` (HTCondor)."""
    poll_seconds: Annotated[float, Field(ge=0.1)] = 5
    """How often the scheduler is asked at most."""
    panda: PandaConfig = PandaConfig()

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.scheduler == "panda" and self.container is None:
            raise ValueError("PanDA runs clew from an image: give `container`, as docker://registry/clew:0.1")
        if self.wall_time_limit is not None and self.wall_time > self.wall_time_limit:
            raise ValueError("wall_time is more than wall_time_limit")
        return self


class BatchRequest(Section):
    """What one job asks a site for; what is None is as the site has it."""

    name: str = "clew"
    nodes: Count | None = None
    ranks: Count = 1
    cpus: Count | None = None
    gpus: Annotated[int, Field(ge=0)] | None = None
    memory: Memory | None = None
    wall_time: Seconds | None = None
    after: tuple[str, ...] = ()
    """Jobs that must have ended well before."""
    array: Count | None = None
    """So many jobs of the same; `{task}` in an argument is the number of each, from 0."""
    requeue: bool = False
    """Go back to the queue when stopped by the end of the wall time."""

    def at(self, site: Site) -> BatchRequest:
        """With the site's own figures where none were given.

        Raises:
            ConfigError: the site allows less time.
        """
        most = site.wall_time_limit or max(site.wall_time, self.wall_time or 0)
        if (self.wall_time or 0) > most:
            told = f"{self.wall_time:g} s of wall time are asked for, {site.name} allows {most:g}"
            raise ConfigError(f"{told}; a run that is requeued needs less at a time")
        return self.model_copy(
            update={
                "cpus": self.cpus or site.cpus,
                "gpus": site.gpus if self.gpus is None else self.gpus,
                "memory": self.memory or site.memory,
                "wall_time": self.wall_time or site.wall_time,
                "requeue": self.requeue and site.requeue,
            }
        )


class SiteLauncher(Launcher, Protocol):
    """A launcher of jobs at a site."""

    def explain(self, job: LaunchedJob) -> str:
        """What the scheduler says of a job beyond its state, in a few words; '' where it says nothing."""

    def script(self, arguments: list[str], folder: Path) -> str:
        """What would be handed in."""

    def problems(self) -> list[str]:
        """What keeps jobs from being handed in from here, a line each."""


def sites_folder() -> Path:
    """Where profiles are kept: $CLEW_SITES, or `clew/sites` in the user's config folder."""
    given = os.environ.get("CLEW_SITES")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "clew" / "sites"


def site_profiles() -> dict[str, Path]:
    """The profiles there are, by name."""
    return {path.stem: path for path in sorted(sites_folder().glob("*.yaml"))}


def load_site(name: str) -> Site:
    """A profile by its name, or by its file.

    Raises:
        ConfigError: there is none, or something is wrong in it.
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else site_profiles().get(name)
    if path is None:
        told = (
            nearest(name, site_profiles()) or f"; there is none in {sites_folder()} yet, add one: clew site add {name}"
        )
        raise ConfigError(f"no site '{name}'{told}")
    site = validate(Site, read_document(path))
    return site if site.name else site.model_copy(update={"name": path.stem})


def save_site(site: Site, *, replace: bool = False) -> Path:
    """Keep a profile under its name, without what is as it is by default.

    Raises:
        ConfigError: there is one already, or the name is no name.
    """
    if not re.fullmatch(r"\w[\w.-]*", site.name):
        raise ConfigError(f"'{site.name}' is no name for a site: letters, digits, '.', '_' and '-'")
    path = sites_folder() / f"{site.name}.yaml"
    if path.exists() and not replace:
        raise ConfigError(f"{path} is there already; --replace takes its place")
    path.parent.mkdir(parents=True, exist_ok=True)
    bare = to_data(type(site)(scheduler=site.scheduler, container=site.container))
    given = {key: value for key, value in to_data(site).items() if value != bare[key] or key in _ALWAYS}
    write_text(path, to_yaml({key: value for key, value in given.items() if key != "name" and value is not None}))
    return path


_ALWAYS = ("scheduler", "container")


def site_launcher(site: Site, needs: BatchRequest | None = None) -> SiteLauncher:
    """What hands jobs in at a site.

    Raises:
        ConfigError: jobs are not handed in there one by one.
    """
    if site.scheduler not in LAUNCHERS:
        raise ConfigError(f"{site.name}: {site.scheduler} takes tasks, not jobs: `clew train` and `clew tune` alone")
    module, _, kind = LAUNCHERS[site.scheduler].partition(":")
    made: SiteLauncher = getattr(importlib.import_module(module), kind)(site, needs)
    return made
