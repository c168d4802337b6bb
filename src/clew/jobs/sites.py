"""Profiles of sites: which scheduler a cluster has, and what a job needs to run there. Each profile is one YAML file.

Profiles are in `sites/` in the user's config folder (or in the folder $CLEW_SITES). `--on SITE` takes a name or a file.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Protocol, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from clew.core.config import Section, parse_seconds, read_document, to_data, to_yaml, validate
from clew.core.files import write_text
from clew.errors import ConfigError, nearest
from clew.jobs.containers import Container, Runtime
from clew.jobs.launchers.launcher import Launcher, launcher_class, scheduler_names
from clew.jobs.task import Task

_MEMORY = re.compile(r"\d+[KMGT]?")
_ALWAYS_SAVED = ("scheduler", "container")


def _check_seconds(value: Any) -> Any:
    return parse_seconds(value, "a length of time,") if isinstance(value, str) else value


def _check_memory(value: str) -> str:
    if not _MEMORY.fullmatch(value):
        raise ValueError(f"expected a size such as 16G, not '{value}'")
    return value


def _check_one_line(value: str) -> str:
    if "\n" in value:
        raise ValueError("must be one line")
    return value


def _check_scheduler(value: str) -> str:
    if value not in scheduler_names():
        raise ValueError(f"no scheduler '{value}'{nearest(value, scheduler_names())}")
    return value


Seconds = Annotated[float, BeforeValidator(_check_seconds), Field(gt=0)]
"""A number of seconds, or a text such as 90s, 30m, 12h."""
Memory = Annotated[str, AfterValidator(_check_memory)]
"""A size such as 16G; without a unit it is in mebibytes."""
Line = Annotated[str, AfterValidator(_check_one_line)]
Count = Annotated[int, Field(ge=1)]


def mebibytes(memory: str) -> int:
    """A size such as 16G in mebibytes, at least one."""
    scale = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2}.get(memory[-1])
    return int(memory) if scale is None else max(1, round(int(memory[:-1]) * scale))


class PandaConfig(Section):
    """What a PanDA task needs besides the container, which has clew and the recipe in it."""

    out: str | None = None
    """The name of the output dataset: `user.me.{name}`; {name} is the job's."""
    cloud: str | None = None
    """The cloud it must run in; default: PanDA chooses."""
    queue: str | None = None
    """The queue it must run in; default: PanDA chooses."""
    arguments: tuple[Line, ...] = ()
    """More arguments of prun or phpo."""


class Site(Section):
    """A cluster as a job sees it."""

    name: str = ""
    """Default: the file's name."""
    scheduler: Annotated[str, AfterValidator(_check_scheduler)]
    """slurm, condor, panda, or a scheduler of an entry point `clew.launchers`."""
    partition: Line | None = None
    """The partition or queue of the scheduler; default: its own."""
    account: Line | None = None
    """The account or accounting group that jobs are charged to."""
    modules: tuple[Line, ...] = ()
    """Loaded by `module load` before anything else."""
    setup: tuple[Line, ...] = ()
    """Lines of shell after that, such as `source /shared/venv/bin/activate`."""
    environment: dict[str, str] = {}
    """Variables that jobs get, set after `modules` and before `setup`."""
    container: Line | None = None
    """An image with clew in it, which the nodes run (PanDA runs it by its own means). `--container` replaces it."""
    container_runtime: Runtime = "apptainer"
    """What runs the image on the nodes: apptainer, singularity, podman, or pyxis (a plugin of Slurm)."""
    container_options: tuple[Line, ...] = ()
    """Options of the runtime, such as `--nv` or `--bind=/data`."""
    python: Line | None = None
    """The Python on the nodes that has clew; default: the one that submits, `python3` in a container."""
    scratch: Line | None = None
    """A fast folder that all nodes see; the cache of prepare goes there."""
    mpi: Line | None = None
    """How srun starts MPI: pmi2, pmix, ... (`srun --mpi=list`); None: the cluster's default."""
    interface: Line | None = None
    """The network interface of the ranks, such as hsn0 or ib0; default: the one that the host's name resolves to."""
    cpus: Count = 1
    """Cores per worker."""
    gpus: Annotated[int, Field(ge=0)] = 0
    """GPUs per worker."""
    memory: Memory | None = None
    """Memory per worker: 16G."""
    workers_per_node: Count = 1
    """Workers on each node of a job that names `--nodes` but no `--workers`."""
    wall_time: Seconds = 3600
    """What jobs request, and the most they may request where `wall_time_limit` is not set."""
    wall_time_limit: Seconds | None = None
    """The most that jobs may request."""
    grace: Seconds = 120
    """How long before its end a job is asked to write a checkpoint; at most a quarter of its time."""
    requeue: bool = True
    """Whether a run that its wall time stopped returns to the queue by itself."""
    storage: Line | None = None
    """Where data and models of this site are: a folder or a URL."""
    directives: tuple[Line, ...] = ()
    """More lines for the scheduler, such as `--constraint=a100` (Slurm) or `+JobFlavour = "longlunch"` (HTCondor)."""
    poll_seconds: Annotated[float, Field(ge=0.1)] = 5
    """The shortest time between two questions to the scheduler."""
    panda: PandaConfig = PandaConfig()

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if launcher_class(self.scheduler).needs_container and self.container is None:
            raise ValueError(
                f"{self.scheduler} runs clew from an image: set `container`, for example docker://registry/clew:0.1"
            )
        if self.wall_time_limit is not None and self.wall_time > self.wall_time_limit:
            raise ValueError("wall_time is more than wall_time_limit")
        return self

    @property
    def takes_jobs(self) -> bool:
        """Whether jobs can be submitted one by one and watched; PanDA takes whole tasks only."""
        return bool(launcher_class(self.scheduler).takes_jobs)

    @property
    def image(self) -> Container | None:
        """The image of its jobs, with what runs it."""
        if self.container is None:
            return None
        return Container(self.container, self.container_runtime, self.container_options)

    def with_image(self, name: str | None) -> Site:
        """The site with another image; None: with its own."""
        return self if name is None else self.model_copy(update={"container": name})


class BatchRequest(Section):
    """What one job requests from a site. `cpus`, `gpus` and `memory` are per worker; None means the site's value."""

    name: str = "clew"
    nodes: Count | None = None
    """None: the scheduler chooses."""
    workers: Count = 1
    """Processes that the scheduler starts, on all nodes together."""
    cpus: Count | None = None
    gpus: Annotated[int, Field(ge=0)] | None = None
    memory: Memory | None = None
    wall_time: Seconds | None = None
    after: tuple[str, ...] = ()
    """Jobs that must have succeeded before."""
    array: Count | None = None
    """The number of jobs that run the same task; each has a number from 0."""
    requeue: bool = False
    """Return to the queue when the wall time has stopped it."""
    container: Line | None = None
    """The image to run it in; None: the site's."""

    def at(self, site: Site) -> BatchRequest:
        """The request with the site's values where it has none.

        Raises:
            ConfigError: the site allows less time.
        """
        limit = site.wall_time_limit or max(site.wall_time, self.wall_time or 0)
        if (self.wall_time or 0) > limit:
            message = f"{self.wall_time:g} s of wall time were requested, {site.name} allows {limit:g}"
            raise ConfigError(f"{message}; a run that is requeued needs less at a time")
        return self.model_copy(
            update={
                "cpus": self.cpus or site.cpus,
                "gpus": site.gpus if self.gpus is None else self.gpus,
                "memory": self.memory or site.memory,
                "wall_time": self.wall_time or site.wall_time,
                "requeue": self.requeue and site.requeue,
            }
        )

    def in_one_process(self) -> BatchRequest:
        """The same resources for a job of one process, which starts the workers itself."""
        memory = None if self.memory is None else f"{mebibytes(self.memory) * self.workers}M"
        cpus = None if self.cpus is None else self.cpus * self.workers
        gpus = None if self.gpus is None else self.gpus * self.workers
        return self.model_copy(update={"workers": 1, "cpus": cpus, "gpus": gpus, "memory": memory})

    @property
    def workers_on_node(self) -> int:
        """The largest number of workers on one node, if the number of nodes is known or one."""
        return math.ceil(self.workers / (self.nodes or 1))


_NOT_REQUESTED: dict[str, tuple[Any, ...]] = {"nodes": (None, 1), "cpus": (None, 1), "gpus": (None, 0)}
"""Values of fields that ask for nothing; of all other fields: None, an empty tuple and False."""


def refuse_unsupported(request: BatchRequest, scheduler: str, unsupported: Mapping[str, str]) -> None:
    """Refuse a request with a field that a scheduler cannot honour. Nothing is dropped silently.

    Args:
        request: What a job requests.
        scheduler: The name of the scheduler, for the message.
        unsupported: What to do instead, by the name of the field.

    Raises:
        ConfigError: A field is set that the scheduler does not support.
    """
    for name, remedy in unsupported.items():
        if getattr(request, name) not in _NOT_REQUESTED.get(name, (None, (), False)):
            raise ConfigError(f"--{name.replace('_', '-')}: {scheduler} cannot honour it; {remedy}")


class SiteCapacity(Section):
    """What the nodes of a site have together."""

    nodes: int
    cpus: int
    gpus: int
    memory: int
    """Bytes."""


class SiteLauncher(Launcher, Protocol):
    """A launcher of jobs at a site. A scheduler of another package implements this."""

    name: str
    takes_jobs: bool
    """Whether jobs can be submitted one by one and watched."""
    needs_container: bool
    """Whether a profile must name an image."""

    def script(self, task: Task, folder: Path) -> str:
        """The text that would be submitted."""

    def problems(self) -> list[str]:
        """What prevents submissions from this machine, one line each."""

    def capacity(self) -> SiteCapacity:
        """What an agent of this site can offer.

        Raises:
            RunError: the scheduler does not answer.
        """


def sites_folder() -> Path:
    """The folder of the profiles: $CLEW_SITES, or `clew/sites` in the user's config folder."""
    folder = os.environ.get("CLEW_SITES")
    if folder:
        return Path(folder)
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "clew" / "sites"


def site_profiles() -> dict[str, Path]:
    """The files of all profiles, by name."""
    return {path.stem: path for path in sorted(sites_folder().glob("*.yaml"))}


def load_site(name: str) -> Site:
    """Load a profile by its name, or by its file.

    Raises:
        ConfigError: there is none, or it is not valid.
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else site_profiles().get(name)
    if path is None:
        hint = nearest(name, site_profiles()) or f"; {sites_folder()} has none, add one: clew site add {name}"
        raise ConfigError(f"no site '{name}'{hint}")
    site = validate(Site, read_document(path))
    return site if site.name else site.model_copy(update={"name": path.stem})


def save_site(site: Site, *, replace: bool = False) -> Path:
    """Save a profile under its name, without its default values.

    Raises:
        ConfigError: there is one already, or the name is not valid.
    """
    if not re.fullmatch(r"\w[\w.-]*", site.name):
        raise ConfigError(f"'{site.name}' is not a valid name for a site: use letters, digits, '.', '_' and '-'")
    path = sites_folder() / f"{site.name}.yaml"
    if path.exists() and not replace:
        raise ConfigError(f"{path} exists already; --replace overwrites it")
    path.parent.mkdir(parents=True, exist_ok=True)
    defaults = to_data(type(site)(scheduler=site.scheduler, container=site.container))
    values = {key: value for key, value in to_data(site).items() if value != defaults[key] or key in _ALWAYS_SAVED}
    write_text(path, to_yaml({key: value for key, value in values.items() if key != "name" and value is not None}))
    return path


def site_launcher(site: Site, request: BatchRequest | None = None) -> SiteLauncher:
    """The launcher that submits jobs at a site.

    Raises:
        ConfigError: jobs cannot be submitted one by one there.
    """
    if not site.takes_jobs:
        raise ConfigError(f"{site.name}: {site.scheduler} takes tasks, not jobs: only `clew train` and `clew tune`")
    return scheduler_at(site, request)


def scheduler_at(site: Site, request: BatchRequest | None = None) -> SiteLauncher:
    """The scheduler of a site, also one that takes whole tasks only."""
    launcher: SiteLauncher = launcher_class(site.scheduler)(site, request)
    return launcher
