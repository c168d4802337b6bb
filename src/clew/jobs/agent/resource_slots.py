"""Which cores and devices of this machine each job gets."""

from __future__ import annotations

from collections.abc import Iterable

from clew.client.job import Resources, Slots
from clew.jobs.launchers.launcher import Slot
from clew.tuning.resource_slots import available_cores


def free_slot(resources: Resources, slots: Slots, taken: Iterable[Slot]) -> Slot:
    """Cores and devices that no other job has. Jobs are not bound if the machine has fewer cores than the agent offers.

    A job that requested no GPU sees none.
    """
    others = list(taken)
    cores = available_cores()
    free = [core for core in cores if all(core not in other.cores for other in others)]
    bound = slots.cpus <= len(cores) and resources.total_cpus <= len(free)
    devices = [number for number in range(slots.gpus) if all(number not in (other.devices or ()) for other in others)]
    return Slot(tuple(free[: resources.total_cpus]) if bound else (), tuple(devices[: resources.total_gpus]))
