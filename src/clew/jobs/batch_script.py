"""What a batch system is handed: lines of shell that set the stage on a node and call clew."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from clew.jobs.sites import BatchRequest, Site

_TASK = "$SLURM_ARRAY_TASK_ID"
# A rank that fails ends the others, who would wait for it, but lets them tell first. One that stopped does not: they
# may still be writing the checkpoint. Slurm's signal reaches this shell too, and may come before clew listens (138).
# Up to 2, clew has told why it ended, and so has bash (126, 127); 143 is how Slurm ends the others.
_RANK = (
    'trap : USR1 TERM; "$@"; code=$?; case $code in 0) ;; 75|138) touch "$0"; code=0 ;; '
    '1|2|126|127|143) sleep 5 ;; *) echo "clew: rank $SLURM_PROCID on $SLURMD_NODENAME ended without a word '
    '(exit code $code$([ $code -gt 128 ] && echo ": signal $((code - 128))"))" >&2; sleep 5 ;; esac; exit $code'
)
_SIGNALLED = 300
"""Seconds. Slurm may send a signal a minute early, which shorter jobs cannot spare: theirs is the clock alone."""
_MOST = 500
"""How often a run may go back to the queue: one that makes no headway must end."""


def stage(site: Site) -> list[str]:
    """Modules, environment and whatever else comes before clew."""
    lines = [f"module load {' '.join(map(shlex.quote, site.modules))}"] if site.modules else []
    told = {} if site.scratch is None else {"CLEW_CACHE": f"{site.scratch}/clew-cache"}
    if site.interface is not None:
        told |= dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), site.interface)
    lines += [f"export {name}={shlex.quote(value)}" for name, value in {**told, **site.environment}.items()]
    return [*lines, *site.setup]


def command(site: Site, arguments: Sequence[str], task: str) -> str:
    """`clew ARGUMENTS` as a node runs it; `task` is the variable that has a job's number in its array."""
    words = [shlex.quote(word) for word in (*container(site), python(site), "-m", "clew", *arguments)]
    return " ".join(words).replace("{task}", f"'{task}'")


def container(site: Site) -> list[str]:
    """What comes before a command so that it runs in the site's image."""
    return [] if site.container is None else ["apptainer", "exec", *site.container_options, site.container]


def python(site: Site) -> str:
    """The Python of the nodes that has clew."""
    return site.python or (sys.executable if site.container is None else "python3")


def spread(site: Site, words: Sequence[str], folder: str) -> str:
    """Lines of shell that run a command on all ranks of a job and end with its code. SIGTERM asks the ranks to stop:
    srun itself would end them at once."""
    stopped = f"{shlex.quote(folder)}/stopped"
    return "\n".join(
        [
            f"rm -f {stopped}",
            f"{_srun(site)} /bin/bash -c {shlex.quote(_RANK)} {stopped} {shlex.join(words)} &",
            "ranks=$!",
            'trap "kill -USR1 $ranks" TERM',
            "while wait $ranks; kill -0 $ranks 2>/dev/null; do :; done",
            "wait $ranks",
            "code=$?",
            f"{{ [ $code = 0 ] && [ -e {stopped} ] || [ $code = 138 ]; }} && code=75",
            "exit $code",
        ]
    )


def _srun(site: Site) -> str:
    return "srun --kill-on-bad-exit=1" + ("" if site.mpi is None else f" --mpi={site.mpi}")


def slurm(site: Site, needs: BatchRequest, arguments: Sequence[str], folder: str) -> str:
    """A script for sbatch. It leaves its exit code in `folder`, or goes back to the queue."""
    lines = ["#!/bin/bash", *(f"#SBATCH {each}" for each in directives(site, needs, folder)), *stage(site)]
    task = "" if needs.array is None else "-$SLURM_ARRAY_TASK_ID"
    me = "$SLURM_JOB_ID" if needs.array is None else "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
    place = shlex.quote(folder)
    lines += [
        f"rm -f {place}/exit{task} {place}/stopped{task}",
        # Slurm before 23.02 does not tell when the time is up
        f'[ "$SLURM_JOB_END_TIME" ] || SLURM_JOB_END_TIME=$(date -d "$(squeue -h -j {me} -o %e)" +%s)',
        '[ "$SLURM_JOB_END_TIME" ] && export SLURM_JOB_END_TIME',
        f"{_srun(site)} /bin/bash -c {shlex.quote(_RANK)} {place}/stopped{task} {command(site, arguments, _TASK)}",
        "code=$?",
        f"[ $code = 0 ] && [ -e {place}/stopped{task} ] && code=75",
    ]
    if needs.requeue:
        lines += [
            f'if [ $code = 75 ] && [ ! -e {place}/stop ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt {_MOST} ] &&',
            f"    scontrol show job {me} | grep -q JobState=RUNNING; then",
            f"    scontrol requeue {me}",
            "    sleep 600  # which it does not see the end of",
            "fi",
        ]
    return "\n".join([*lines, f"echo $code > {place}/exit{task}", "exit $code", ""])


def directives(site: Site, needs: BatchRequest, folder: str) -> list[str]:
    """What sbatch is asked for."""
    asked = needs.at(site)
    wall = asked.wall_time or site.wall_time
    log = "log.txt" if asked.array is None else "log-%a.txt"
    told: dict[str, object] = {
        "job-name": f"clew-{asked.name}",
        "output": f"{folder}/{log}",
        "open-mode": "append",
        "chdir": Path.cwd(),
        "partition": site.partition,
        "account": site.account,
        "nodes": asked.nodes,
        "ntasks": asked.ranks,
        "cpus-per-task": asked.cpus,
        "gres": f"gpu:{asked.gpus}" if asked.gpus else None,
        "mem": asked.memory,
        "time": max(1, round(wall / 60)),
        "signal": f"USR1@{grace(site, wall):.0f}" if wall >= _SIGNALLED else None,
        "requeue" if asked.requeue else "no-requeue": True,
        "array": None if asked.array is None else f"0-{asked.array - 1}",
        "dependency": f"afterok:{':'.join(asked.after)}" if asked.after else None,
        "kill-on-invalid-dep": "yes" if asked.after else None,
    }
    given = [
        f"--{name}" if value is True else f"--{name}={shlex.quote(str(value))}"
        for name, value in told.items()
        if value is not None
    ]
    return [*given, *site.directives]


def grace(site: Site, wall: float) -> float:
    """Seconds before the end at which a job of so many is told."""
    return max(1.0, min(site.grace, wall / 4))


def condor(site: Site, needs: BatchRequest, arguments: Sequence[str], folder: str) -> str:
    """The executable of an HTCondor job, called with its number in the array. HTCondor begins it again on 75."""
    place, end = shlex.quote(folder), "exit" if needs.array is None else "exit-$1"
    wall = needs.at(site).wall_time or site.wall_time
    tell = f"timeout --preserve-status --signal=USR1 {wall - grace(site, wall):.0f}"
    lines = ["#!/bin/bash", *stage(site), f"rm -f {place}/{end}", f"{tell} {command(site, arguments, '$1')}", "code=$?"]
    if needs.requeue:
        lines.append(f"[ $code = 75 ] && [ ! -e {place}/stop ] && exit 75")
    return "\n".join([*lines, f"echo $code > {place}/{end}", "exit $code", ""])
