"""What this machine has to give, and which part of it each job gets."""

from __future__ import annotations

from collections.abc import Iterable

import psutil

from clew.client.job import Resources, Slots
from clew.jobs.launchers.launcher import Slot
from clew.jobs.launchers.slurm_queue import SiteCapacity
from clew.jobs.sites import Site
from clew.tuning.resource_slots import available_cores, device_count


def slots_here(*, cpus: int | None = None, gpus: int | None = None, memory: int | None = None) -> Slots:
    """What there is, unless told otherwise."""
    return Slots(
        cpus=len(available_cores()) if cpus is None else cpus,
        gpus=device_count() if gpus is None else gpus,
        memory=psutil.virtual_memory().total if memory is None else memory,
    )


def slots_at(site: Site, *, cpus: int | None = None, gpus: int | None = None, memory: int | None = None) -> Slots:
    """What all nodes of a site's partition have together, unless told otherwise.

    Raises:
        RunError: its scheduler does not answer.
    """
    nodes = SiteCapacity.of(site)
    return Slots(
        cpus=nodes.cpus if cpus is None else cpus,
        gpus=nodes.gpus if gpus is None else gpus,
        memory=nodes.memory if memory is None else memory,
        nodes=max(nodes.count, 1),
        site=site.name,
    )


def room(needs: Resources, slots: Slots, taken: Iterable[Slot]) -> Slot:
    """Cores and devices that nobody has; no cores where fewer are there than were promised.

    A job that asked for no GPU sees none.
    """
    others = list(taken)
    cores = available_cores()
    free = [each for each in cores if all(each not in other.cores for other in others)]
    bound = slots.cpus <= len(cores) and needs.cpus <= len(free)
    devices = [each for each in range(slots.gpus) if all(each not in (other.devices or ()) for other in others)]
    return Slot(tuple(free[: needs.cpus]) if bound else (), tuple(devices[: needs.gpus]))
