"""The scripts that batch systems get: lines of shell that set up a node and run a task."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from clew.core.process import safe_path
from clew.errors import ConfigError
from clew.jobs import supervisor
from clew.jobs.containers import DIGEST_VARIABLE
from clew.jobs.sites import BatchRequest, Site, mebibytes
from clew.jobs.task import Task, process_command, task_file

# A rank that fails ends the others, which would wait for it, but lets them print their errors first. A rank that
# stopped does not end them: they may still be writing the checkpoint. Slurm's signal reaches this shell too, and may
# come before clew handles signals (138). The shell itself writes the file: a second signal would end `touch`, and the
# job would count as finished. For codes up to 2 clew has printed why it ended, and for 126 and 127 bash has;
# 143 is how Slurm ends the other ranks.
_RANK = (
    'trap : USR1 TERM; "$@"; code=$?; case $code in 0) ;; 75|138) : >"$0"; code=0 ;; '
    '1|2|126|127|143) sleep 5 ;; *) echo "clew: rank $SLURM_PROCID on $SLURMD_NODENAME ended without a message '
    '(exit code $code$([ $code -gt 128 ] && echo ": signal $((code - 128))"))" >&2; sleep 5 ;; esac; exit $code'
)
_MIN_SIGNALLED = 300
"""Seconds. Slurm may send a signal up to a minute early. Jobs shorter than this watch the clock instead."""
_MAX_REQUEUES = 500
"""How often a run may return to the queue: a run that makes no progress must end."""


def setup_lines(site: Site) -> list[str]:
    """Modules, environment and the site's own lines: everything before clew."""
    lines = [f"module load {' '.join(map(shlex.quote, site.modules))}"] if site.modules else []
    variables = {} if site.scratch is None else {"CLEW_CACHE": f"{site.scratch}/clew-cache"}
    if site.interface is not None:
        variables |= dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), site.interface)
    lines += [f"export {name}={shlex.quote(value)}" for name, value in {**variables, **site.environment}.items()]
    if site.image is not None and site.image.detached:
        lines.append(f"export {DIGEST_VARIABLE}=$({shlex.join(site.image.digest_words())} 2>/dev/null)")
    return [*lines, *site.setup]


def task_words(site: Site, task: Task, folder: str, index: str | None = None, folders: Sequence[str] = ()) -> list[str]:
    """The words that run a task on a node, in the site's container if it has one; `folders` are those it needs."""
    command = process_command(task, task_file(Path(folder)), python=node_python(site), index=index)
    return [*container_words(site, (folder, *folders)), *command]


def _quoted(words: Sequence[str], index: str | None) -> str:
    """Words for a shell; the variable with a job's number in its array is left to the shell."""
    return " ".join(word if word == index else shlex.quote(word) for word in words)


def container_words(site: Site, folders: Sequence[str]) -> list[str]:
    """The words before a command that run it in the site's image; none where srun starts the image."""
    image = site.image
    if image is None or image.started_by_srun:
        return []
    here = str(Path.cwd())
    return image.words(list(dict.fromkeys((here, *folders))), here) if image.detached else image.words()


def node_python(site: Site) -> str:
    """The Python of the nodes that has clew."""
    return site.python or (sys.executable if site.container is None else "python3")


def spread_over_ranks(site: Site, words: Sequence[str], folder: str) -> str:
    """Lines of shell that run a command on all ranks of a Slurm job and end with its code.

    SIGTERM asks the ranks to stop; srun itself would end them at once.
    """
    stopped = f"{shlex.quote(folder)}/stopped"
    return "\n".join(
        [
            f"rm -f {stopped}",
            f"{_srun(site, folder)} /bin/bash -c {shlex.quote(_RANK)} {stopped} {shlex.join(words)} &",
            "ranks=$!",
            'trap "kill -USR1 $ranks" TERM',
            "while wait $ranks; kill -0 $ranks 2>/dev/null; do :; done",
            "wait $ranks",
            "code=$?",
            f"{{ [ $code = 0 ] && [ -e {stopped} ] || [ $code = 138 ]; }} && code=75",
            "exit $code",
        ]
    )


def _srun(site: Site, folder: str) -> str:
    words = ["srun", "--kill-on-bad-exit=1", *([] if site.mpi is None else [f"--mpi={site.mpi}"])]
    if site.image is not None and site.image.started_by_srun:
        here = str(Path.cwd())
        words += site.image.srun_options(list(dict.fromkeys((here, folder))), here)
    return shlex.join(words)


def _record_end(folder: str, suffix: str) -> str:
    """The line of shell that records the end of a job as the supervisor would."""
    return f'echo "{{\\"code\\": $code}}" > {shlex.quote(folder)}/end{suffix}.json'


def supervised_script(site: Site, head: Sequence[str], folder: str, name: str) -> str:
    """A script whose job is the supervisor of `folder`; `name` is the shell variable with the job's number."""
    python = sys.executable if site.container else node_python(site)
    start = f"exec {shlex.join([python, *safe_path(), '-m', supervisor.__name__, folder])} {name}"
    return "\n".join(["#!/bin/bash", *head, *setup_lines(site), start, ""])


def slurm_script(site: Site, request: BatchRequest, task: Task, folder: str) -> str:
    """A script for sbatch. It records its exit code in `folder`, or returns to the queue."""
    lines = ["#!/bin/bash", *slurm_head(site, request, folder), *setup_lines(site)]
    array = request.array is not None
    suffix, index = ("-$SLURM_ARRAY_TASK_ID", "$SLURM_ARRAY_TASK_ID") if array else ("", None)
    job = "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID" if array else "$SLURM_JOB_ID"
    quoted = shlex.quote(folder)
    command = _quoted(task_words(site, task, folder, index), index)
    lines += [
        f"rm -f {quoted}/end{suffix}.json {quoted}/stopped{suffix}",
        # Slurm before 23.02 does not say when the time is over
        f'[ "$SLURM_JOB_END_TIME" ] || SLURM_JOB_END_TIME=$(date -d "$(squeue -h -j {job} -o %e)" +%s)',
        '[ "$SLURM_JOB_END_TIME" ] && export SLURM_JOB_END_TIME',
        f"{_srun(site, folder)} /bin/bash -c {shlex.quote(_RANK)} {quoted}/stopped{suffix} {command}",
        "code=$?",
        f"[ $code = 0 ] && [ -e {quoted}/stopped{suffix} ] && code=75",
    ]
    if request.requeue:
        lines += [
            f'if [ $code = 75 ] && [ ! -e {quoted}/stop ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt {_MAX_REQUEUES} ] &&',
            f"    scontrol show job {job} | grep -q JobState=RUNNING; then",
            f"    scontrol requeue {job}",
            "    sleep 600  # the requeue ends this script before that",
            "fi",
        ]
    return "\n".join([*lines, _record_end(folder, suffix), "exit $code", ""])


def slurm_head(site: Site, request: BatchRequest, folder: str) -> list[str]:
    """The directives of a script for sbatch."""
    return [f"#SBATCH {directive}" for directive in slurm_directives(site, request, folder)]


def slurm_directives(site: Site, request: BatchRequest, folder: str) -> list[str]:
    """The options of sbatch."""
    job = request.at(site)
    wall_time = job.wall_time or site.wall_time
    log = "log.txt" if job.array is None else "log-%a.txt"
    values: dict[str, object] = {
        "job-name": f"clew-{job.name}",
        "output": f"{folder}/{log}",
        "open-mode": "append",
        "chdir": Path.cwd(),
        "partition": site.partition,
        "account": site.account,
        "nodes": job.nodes,
        "ntasks": job.workers,
        "cpus-per-task": job.cpus,
        **_slurm_shares(job),
        "time": max(1, round(wall_time / 60)),
        "signal": f"USR1@{grace_seconds(site, wall_time):.0f}" if wall_time >= _MIN_SIGNALLED else None,
        "requeue" if job.requeue else "no-requeue": True,
        "array": None if job.array is None else f"0-{job.array - 1}",
        "dependency": f"afterok:{':'.join(job.after)}" if job.after else None,
        "kill-on-invalid-dep": "yes" if job.after else None,
    }
    check_one_line(values)
    options = [
        f"--{name}" if value is True else f"--{name}={shlex.quote(str(value))}"
        for name, value in values.items()
        if value is not None
    ]
    return [*options, *site.directives]


def check_one_line(values: Mapping[str, object]) -> None:
    """Check values that are written to a script or a description, one per line: the rest of a value would be a command.

    Raises:
        ConfigError: a value has a line break or another control character.
    """
    for name, value in values.items():
        if any(not character.isprintable() for character in str(value)):
            raise ConfigError(f"{name} {str(value)!r}: a job's name and folder may not have line breaks; rename it")


def _slurm_shares(job: BatchRequest) -> dict[str, object]:
    """GPUs and memory, which a request gives per worker, as Slurm takes them.

    Slurm takes both per node. Where Slurm chooses the number of nodes, it takes the total of GPUs and memory per core.
    """
    memory = None if job.memory is None else mebibytes(job.memory)
    if job.nodes is None and job.workers > 1:
        per_core = None if memory is None else math.ceil(memory / (job.cpus or 1))
        gpus = job.workers * job.gpus if job.gpus else None
        return {"gpus": gpus, "mem-per-cpu": None if per_core is None else f"{per_core}M"}
    on_node = math.ceil(job.workers / (job.nodes or 1))
    gres = f"gpu:{job.gpus * on_node}" if job.gpus else None
    return {"gres": gres, "mem": None if memory is None else f"{memory * on_node}M"}


def grace_seconds(site: Site, wall_time: float) -> float:
    """Seconds before the end at which a job of this wall time is asked to stop."""
    return max(1.0, min(site.grace, wall_time / 4))


def condor_script(site: Site, request: BatchRequest, task: Task, folder: str) -> str:
    """The executable of an HTCondor job, called with its number in the array. Exit code 75 starts it again."""
    suffix, index = ("", None) if request.array is None else ("-$1", "$1")
    wall_time = request.at(site).wall_time or site.wall_time
    timeout = f"timeout --preserve-status --signal=USR1 {wall_time - grace_seconds(site, wall_time):.0f}"
    quoted = shlex.quote(folder)
    lines = ["#!/bin/bash", *setup_lines(site), f"rm -f {quoted}/end{suffix}.json"]
    lines += [
        f"{timeout} {_quoted(task_words(site, task, folder, index), index)} &",
        "trap 'kill -TERM $!' TERM  # HTCondor signals this script only; the task needs it to write a checkpoint",
        "wait $!",
        "while kill -0 $! 2>/dev/null; do wait $!; done",
        "wait $!",
        "code=$?",
    ]
    if request.requeue:
        lines.append(f"[ $code = 75 ] && [ ! -e {quoted}/stop ] && exit 75")
    return "\n".join([*lines, _record_end(folder, suffix), "exit $code", ""])
