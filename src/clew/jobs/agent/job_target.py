"""Where the jobs of an agent run: on its own machine, or at a site."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import psutil

from clew.client.job import Resources, Slots
from clew.errors import ConfigError
from clew.jobs.containers import local_runtime
from clew.jobs.launchers.launcher import Launcher
from clew.jobs.launchers.local import LocalLauncher
from clew.jobs.sites import BatchRequest, Site, load_site, scheduler_at, site_launcher
from clew.tuning.resource_slots import available_cores, device_count


@dataclass(frozen=True)
class Offer:
    """What the user lets an agent offer; None: all there is."""

    cpus: int | None = None
    gpus: int | None = None
    memory: int | None = None
    """Bytes."""


@dataclass(frozen=True)
class JobTarget:
    """This machine, or a site whose scheduler gets the jobs."""

    site: Site | None = None
    container_options: Sequence[str] = ()
    """Options of what runs container images on this machine; at a site the profile has them."""

    @classmethod
    def named(cls, site: str | None, container_options: Sequence[str] = ()) -> JobTarget:
        """The target of a site's name or profile; None: this machine.

        Raises:
            ConfigError: no such site, or it has options of its own.
        """
        if site is not None and container_options:
            raise ConfigError(f"--container-option: set `container_options` in the profile of {site}")
        return cls(None if site is None else load_site(site), tuple(container_options))

    @property
    def local(self) -> bool:
        """Whether jobs run on this machine, which reserves cores and devices for them."""
        return self.site is None

    def uses_image(self, resources: Resources) -> bool:
        """Whether a job with these resources runs in a container."""
        return resources.container is not None or (self.site is not None and self.site.container is not None)

    def launcher(self, resources: Resources) -> Launcher:
        """The launcher of a job with these resources.

        Raises:
            ConfigError: the site cannot run such a job.
        """
        if self.site is None:
            return LocalLauncher(resources.container, self.container_options)
        memory = None if resources.memory is None else f"{math.ceil(resources.memory / 2**20)}M"
        request = BatchRequest(
            nodes=resources.nodes,
            workers=resources.workers,
            cpus=resources.cpus,
            gpus=resources.gpus,
            memory=memory,
            container=resources.container,
        )
        # on one node clew starts its workers itself; on several the scheduler does
        return site_launcher(self.site, request if resources.nodes > 1 else request.at(self.site).in_one_process())

    def watcher(self, resources: Resources) -> Launcher:
        """The launcher that watches and ends a job. At a site, it is the same for all jobs: it asks the queue once."""
        return self.launcher(resources) if self.site is None else self._site_watcher

    @cached_property
    def _site_watcher(self) -> Launcher:
        assert self.site is not None
        return site_launcher(self.site)

    def slots(self, offer: Offer) -> Slots:
        """What an agent with this target offers.

        Raises:
            ConfigError: no agent can serve this scheduler.
            RunError: the scheduler does not answer.
        """
        if self.site is None:
            return Slots(
                cpus=len(available_cores()) if offer.cpus is None else offer.cpus,
                gpus=device_count() if offer.gpus is None else offer.gpus,
                memory=psutil.virtual_memory().total if offer.memory is None else offer.memory,
                containers=local_runtime() is not None,
            )
        if not self.site.name:
            raise ConfigError("a site's profile needs a name")
        capacity = scheduler_at(self.site).capacity()
        return Slots(
            cpus=capacity.cpus if offer.cpus is None else offer.cpus,
            gpus=capacity.gpus if offer.gpus is None else offer.gpus,
            memory=capacity.memory if offer.memory is None else offer.memory,
            nodes=max(capacity.nodes, 1),
            site=self.site.name,
            containers=True,
        )
