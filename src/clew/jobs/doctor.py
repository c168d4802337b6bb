"""Checks of a machine before a run: what a run needs, whether it exists, and what to do if it does not."""

from __future__ import annotations

import contextlib
import email.utils
import importlib.util
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from clew import storage as stores
from clew.core.log_tail import last_line
from clew.core.process import safe_path
from clew.errors import ConfigError, DataError
from clew.jobs import rank_info
from clew.jobs.rank_info import RankInfo
from clew.jobs.sites import Site, scheduler_at

Verdict = Literal["good", "note", "bad"]
_PYTHON, _TORCH = (3, 11), (2, 11)
_PMI = {"PMIX_RANK": "PMIx", "PMI_RANK": "PMI", "PMI_FD": "PMI"}
"""Variables by which srun shows the protocol that its ranks can use."""
SPACE = 1e9
"""Bytes that must be free in the folders of runs and caches."""
_SKEW = 2.0, 60.0
"""Difference of clocks in seconds above which there is a note, and above which it is bad."""
_LOCK = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'a'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
_MPI = """
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
print(MPI.Get_library_version().splitlines()[0].strip('\\0 '))
print(*{line.split()[-1] for line in open('/proc/self/maps') if 'libmpi' in line.rpartition('/')[2]})
"""
_MPI_SIZE = "from mpi4py import MPI; print(MPI.COMM_WORLD.size)"
_MPI_TIMEOUT = 60.0
"""Seconds in which the ranks of MPI must connect."""
_USE_TCP = "remove `mpi` from the profile; asynchronous training then uses TCP"


@dataclass(frozen=True)
class Finding:
    """The result of one check. `bad`: a run would fail."""

    name: str
    verdict: Verdict
    message: str
    advice: str = ""
    """What to do."""


def examine(folder: Path, site: Site | None = None, *, server: str | None = None) -> Iterator[Finding]:
    """Check everything that a run in `folder` needs, one finding after the other.

    Args:
        folder: The folder of runs.
        site: The site whose nodes have this configuration; None for a machine without a scheduler.
        server: The address of the clew server, if any.
    """
    yield _python()
    yield _torch()
    yield _device(site)
    yield _mpi(site)
    yield _locking(folder)
    yield from (_space(name, place) for name, place in _folders(folder, site).items())
    yield _ports()
    yield _service(server)
    yield _clock(folder, server)


def _python() -> Finding:
    message = f"{platform.python_version()} at {sys.executable}"
    if sys.version_info < _PYTHON:
        return Finding("python", "bad", message, "clew needs Python 3.11 or newer: create an environment with it")
    return Finding("python", "good", message)


def _torch() -> Finding:
    try:
        import torch
    except Exception as error:
        return Finding("torch", "bad", f"cannot be imported: {error}", "pip install torch (see pytorch.org)")
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < _TORCH:
        return Finding("torch", "bad", torch.__version__, "clew needs torch 2.11 or newer: pip install --upgrade torch")
    return Finding("torch", "good", torch.__version__)


def _device(site: Site | None) -> Finding:
    requested = 0 if site is None else site.gpus
    try:
        import torch

        available = torch.accelerator.device_count() if torch.accelerator.is_available() else 0
        kind = str(torch.accelerator.current_accelerator()) if available else ""
    except Exception as error:
        return Finding(
            "gpu", "bad" if requested else "note", f"torch cannot list devices: {error}", "repair torch first"
        )
    if available < requested:
        return Finding(
            "gpu",
            "bad",
            f"{available} available, {requested} in the profile of {site.name if site else ''}",
            "request them (`gpus`, `directives`), and install a torch built for them (with a container: --nv)",
        )
    if available:
        return Finding("gpu", "good", f"{available} of kind {kind}")
    if any(Path("/dev").glob("nvidia[0-9]*")):
        return Finding(
            "gpu",
            "bad",
            "there is a device, but torch cannot use it",
            "install a torch built for the CUDA of its driver",
        )
    return Finding("gpu", "good", "none: training uses the CPU")


def _mpi(site: Site | None) -> Finding:
    if importlib.util.find_spec("mpi4py") is None:
        advice = "to use MPI: load the module of the site and `pip install --no-binary=mpi4py mpi4py`"
        return Finding("mpi", "note", "no mpi4py: ranks connect over TCP, prepare runs without MPI", advice)
    done = subprocess.run(
        [sys.executable, *safe_path(), "-c", _MPI], capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode:
        last = last_line(done.stderr)
        return Finding("mpi", "bad", f"mpi4py finds no library: {last}", "load the MPI module that it was built with")
    version, _, paths = done.stdout.strip().partition("\n")
    version = " ".join(version.partition(", package")[0].split())
    path = paths.split()[0] if paths else "an unknown library"
    together = _mpi_ranks_meet(rank_info.current_rank()) if site is not None else None
    if together is not None and together.verdict != "good":
        return Finding("mpi", together.verdict, f"{version}, {path}: {together.message}", together.advice)
    if not path.startswith(sys.prefix):
        met = "" if together is None else f"; {together.message}"
        return Finding("mpi", "good", f"of the site: {version}, {path}{met}")
    message = f"wheel of PyPI: {version}, {path}"
    if site is None:
        return Finding("mpi", "good", message)
    advice = (
        "good for one node; for the fast network load the site's MPI, `pip install --force --no-binary=mpi4py mpi4py`"
    )
    return Finding("mpi", "note", message, advice)


def _mpi_ranks_meet(here: RankInfo) -> Finding | None:
    """Whether the ranks that srun started connect through MPI; None if srun did not start this process."""
    pmi = next((name for mark, name in _PMI.items() if mark in os.environ), None)
    if here.launcher != "srun":
        return None
    if pmi is None:
        message = "srun starts ranks without PMI, so they connect over TCP"
        return Finding("mpi", "note", message, "for MPI set it in the profile: `mpi: pmix` (srun --mpi=list)")
    try:
        done = subprocess.run(
            [sys.executable, *safe_path(), "-c", _MPI_SIZE],
            capture_output=True,
            text=True,
            timeout=_MPI_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Finding("mpi", "bad", f"MPI_Init by {pmi} did not end in {_MPI_TIMEOUT:.0f} s", _USE_TCP)
    if done.returncode:
        last = last_line(done.stderr)
        return Finding("mpi", "bad", f"MPI_Init by {pmi} failed: {last}", _USE_TCP)
    message = f"{done.stdout.strip()} of {here.ranks} ranks connected by {pmi}"
    if done.stdout.strip() != str(here.ranks):
        return Finding("mpi", "note", message, f"the library does not support {pmi}: load another MPI, or {_USE_TCP}")
    return Finding("mpi", "good", message)


def _locking(folder: Path) -> Finding:
    """Check that another process cannot take a lock of this process."""
    import fcntl

    advice = "the cache of prepare and studies need locks: choose a folder on another file system (or set CLEW_CACHE)"
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".clew-doctor-") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            second = subprocess.run(
                [sys.executable, *safe_path(), "-c", _LOCK, file.name], capture_output=True, check=False
            )
    except OSError as error:
        return Finding("locks", "bad", f"{folder}: {error.strerror}", advice)
    if second.returncode == 0:
        return Finding("locks", "bad", f"{folder}: two processes can hold the same lock", advice)
    return Finding("locks", "good", f"work in {folder}")


def _folders(folder: Path, site: Site | None) -> Mapping[str, Path]:
    folders = {"space here": folder, "temporary space": Path(tempfile.gettempdir())}
    if site is not None and site.scratch is not None:
        folders["scratch"] = Path(os.path.expandvars(site.scratch))
    return folders


def _space(name: str, folder: Path) -> Finding:
    try:
        free = shutil.disk_usage(folder).free
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".clew-doctor-") as file:
            file.write(b"x" * 4096)
            file.flush()
    except OSError as error:
        return Finding(name, "bad", f"{folder}: {error.strerror}", "choose a folder that exists and is writable")
    message = f"{free / 1e9:,.1f} GB free in {folder}"
    if free < SPACE:
        return Finding(name, "bad", message, "free some space: `clew cache prune` removes the oldest results")
    return Finding(name, "good", message)


def _ports() -> Finding:
    """Check that the name of this host leads to it: ranks find each other by it."""
    host = socket.gethostname()
    try:
        with socket.create_server((host, 0)) as server:
            address, port = server.getsockname()[:2]
            with socket.create_connection((host, port), timeout=5):
                return Finding("ports", "good", f"{host} is {address} and reachable")
    except OSError as error:
        advice = "the name must lead to an address of the host: set `interface` in the profile, or correct /etc/hosts"
        return Finding("ports", "bad", f"{host} is not reachable from itself: {error}", advice)


def _service(server: str | None) -> Finding:
    if not server:
        return Finding("service", "good", "none (CLEW_SERVER is not set): runs are files only")
    try:
        _server_time(server)
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        advice = "runs continue and their records are sent later; check CLEW_SERVER, the network and the server"
        return Finding("service", "bad", f"{server} does not answer: {reason}", advice)
    return Finding("service", "good", f"{server} answers")


def _server_time(server: str) -> float | None:
    """The time of a server's clock, if it sends it."""
    try:
        with urllib.request.urlopen(server, timeout=10) as answer:
            date = answer.headers.get("Date")
    except urllib.error.HTTPError as error:  # it answers with a refusal
        date = error.headers.get("Date")
    return email.utils.parsedate_to_datetime(date).timestamp() if date else None


def _clock(folder: Path, server: str | None) -> Finding:
    """Compare the clock of this host with those of the file system and of the server."""
    skews: dict[str, float] = {}
    with contextlib.suppress(OSError), tempfile.NamedTemporaryFile(dir=folder, prefix=".clew-doctor-") as file:
        before = time.time()
        Path(file.name).touch()
        skews["the clock of the file system"] = Path(file.name).stat().st_mtime - (before + time.time()) / 2
    with contextlib.suppress(OSError, ValueError):
        date = _server_time(server) if server else None
        if date is not None:
            skews["the clock of the server"] = date + 0.5 - time.time()  # whole seconds
    clock, skew = max(skews.items(), key=lambda pair: abs(pair[1]), default=("", 0.0))
    message = f"within {abs(skew):.1f} s of {clock}" if clock else "not compared with another clock"
    verdicts: tuple[Verdict, ...] = ("good", "note", "bad")
    verdict = verdicts[sum(abs(skew) > limit for limit in _SKEW)]
    return Finding("clock", verdict, message, "" if verdict == "good" else "set the clock of the host (NTP)")


def scheduler(site: Site | None) -> Finding:
    """Whether jobs can be submitted: to a site, or with the commands of this machine."""
    if site is None:
        commands: dict[str, Callable[[], str | None]] = {
            "Slurm": lambda: shutil.which("sbatch"),
            "HTCondor": lambda: shutil.which("condor_submit"),
        }
        available = [name for name, find in commands.items() if find()]
        message = (
            f"{' and '.join(available)}: `clew site add` lets clew use it"
            if available
            else "none: runs are processes of this machine"
        )
        return Finding("scheduler", "good", message)
    problems = scheduler_at(site).problems()
    if problems:
        return Finding(
            "scheduler", "bad", "; ".join(problems), f"correct the profile, or ask the support of {site.name}"
        )
    return Finding("scheduler", "good", f"{site.scheduler} accepts jobs for {site.name}")


def storage(site: Site) -> Finding:
    """Whether the storage of the profile can be read."""
    if site.storage is None:
        return Finding("storage", "good", "none in the profile")
    advice = "check the address and your credentials; s3://, root:// and rucio: need the extras s3, xrootd and rucio"
    named = stores.mask_secrets(site.storage)
    try:
        files = stores.expand(site.storage)
    except (ConfigError, DataError) as error:
        return Finding("storage", "bad", str(error), advice)
    if files or (not stores.is_url(site.storage) and stores.local_path(site.storage).exists()):
        return Finding("storage", "good", f"{named} can be read")
    if stores.is_url(site.storage):
        return Finding("storage", "note", f"{named} answers, and holds no file", advice)
    return Finding("storage", "bad", f"{named}: no such folder", advice)
