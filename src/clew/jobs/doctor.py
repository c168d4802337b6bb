"""Looking a machine over before a run: what it needs, whether it is there, and what to do where it is not."""

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
from clew.errors import ConfigError, DataError
from clew.jobs import rank_info
from clew.jobs.rank_info import RankInfo
from clew.jobs.sites import Site, scheduler_at

Verdict = Literal["good", "note", "bad"]
_PYTHON, _TORCH = (3, 11), (2, 11)
_PMI = {"PMIX_RANK": "PMIx", "PMI_RANK": "PMI", "PMI_FD": "PMI"}
"""What srun gives its ranks to meet by."""
_SPACE = 1e9
"""Bytes that must be free where runs and caches go."""
_SKEW = 2.0, 60.0
"""Seconds by which clocks may differ before it is told, and before it is wrong."""
_LOCK = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'a'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
_MPI = """
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
print(MPI.Get_library_version().splitlines()[0].strip('\\0 '))
print(*{line.split()[-1] for line in open('/proc/self/maps') if 'libmpi' in line.rpartition('/')[2]})
"""
_TOGETHER = "from mpi4py import MPI; print(MPI.COMM_WORLD.size)"
_MEET = 60.0
"""Seconds in which MPI's ranks must have met."""
_TCP = "leave `mpi` out of the profile, and asynchronous training talks over TCP"


@dataclass(frozen=True)
class Finding:
    """What was looked at. `bad`: a run would fail."""

    name: str
    verdict: Verdict
    message: str
    advice: str = ""
    """What to do about it."""


def examine(folder: Path, site: Site | None = None, *, server: str | None = None) -> Iterator[Finding]:
    """Everything a run in `folder` needs, one by one as it is looked at. `site`: as its nodes should be."""
    yield _python()
    yield _torch()
    yield _device(site)
    yield _mpi(site)
    yield _locking(folder)
    yield from (_space(name, place) for name, place in _places(folder, site).items())
    yield _ports()
    yield _service(server)
    yield _clock(folder, server)


def _python() -> Finding:
    told = f"{platform.python_version()} at {sys.executable}"
    if sys.version_info < _PYTHON:
        return Finding("python", "bad", told, "clew needs Python 3.11 or newer: make a new environment with one")
    return Finding("python", "good", told)


def _torch() -> Finding:
    try:
        import torch
    except Exception as error:
        return Finding("torch", "bad", f"cannot be imported: {error}", "pip install torch (pytorch.org tells which)")
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < _TORCH:
        return Finding("torch", "bad", torch.__version__, "clew needs torch 2.11 or newer: pip install --upgrade torch")
    return Finding("torch", "good", torch.__version__)


def _device(site: Site | None) -> Finding:
    wanted = 0 if site is None else site.gpus
    try:
        import torch

        there = torch.accelerator.device_count() if torch.accelerator.is_available() else 0
        kind = str(torch.accelerator.current_accelerator()) if there else ""
    except Exception as error:
        return Finding("gpu", "bad" if wanted else "note", f"torch cannot ask: {error}", "mend torch first")
    if there < wanted:
        return Finding(
            "gpu",
            "bad",
            f"{there} seen, {wanted} are in the profile of {site.name if site else ''}",
            "ask for them (`gpus`, `directives`), and install a torch built for them (with a container: --nv)",
        )
    if there:
        return Finding("gpu", "good", f"{there} of kind {kind}")
    if any(Path("/dev").glob("nvidia[0-9]*")):
        return Finding(
            "gpu", "bad", "a device is there, torch cannot use it", "install a torch built for its driver's CUDA"
        )
    return Finding("gpu", "good", "none: trains on the processor")


def _mpi(site: Site | None) -> Finding:
    if importlib.util.find_spec("mpi4py") is None:
        do = "where you want MPI: load the site's and `pip install --no-binary=mpi4py mpi4py`"
        return Finding("mpi", "note", "no mpi4py: ranks meet over TCP, prepare runs without MPI", do)
    done = subprocess.run([sys.executable, "-c", _MPI], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        last = last_line(done.stderr)
        return Finding("mpi", "bad", f"mpi4py finds no library: {last}", "load the MPI module that it was built with")
    version, _, paths = done.stdout.strip().partition("\n")
    version = " ".join(version.partition(", package")[0].split())
    path = paths.split()[0] if paths else "a library that could not be traced"
    together = _together(rank_info.current_rank()) if site is not None else None
    if together is not None and together.verdict != "good":
        return Finding("mpi", together.verdict, f"{version}, {path}: {together.message}", together.advice)
    if not path.startswith(sys.prefix):
        met = "" if together is None else f"; {together.message}"
        return Finding("mpi", "good", f"the site's: {version}, {path}{met}")
    told = f"the wheel of PyPI: {version}, {path}"
    if site is None:
        return Finding("mpi", "good", told)
    do = "fine on one node; for the fabric: load the site's MPI, `pip install --force --no-binary=mpi4py mpi4py`"
    return Finding("mpi", "note", told, do)


def _together(here: RankInfo) -> Finding | None:
    """Whether the ranks that srun started, of which this is one, are one world to MPI; None: it started none."""
    pmi = next((name for mark, name in _PMI.items() if mark in os.environ), None)
    if here.launcher != "srun":
        return None
    if pmi is None:
        told = "srun starts ranks without PMI, so they meet over TCP"
        return Finding("mpi", "note", told, "for MPI name the site's in the profile: `mpi: pmix` (srun --mpi=list)")
    try:
        done = subprocess.run(
            [sys.executable, "-c", _TOGETHER], capture_output=True, text=True, timeout=_MEET, check=False
        )
    except subprocess.TimeoutExpired:
        return Finding("mpi", "bad", f"MPI_Init by {pmi} did not end in {_MEET:.0f} s", _TCP)
    if done.returncode:
        last = last_line(done.stderr)
        return Finding("mpi", "bad", f"MPI_Init by {pmi} failed: {last}", _TCP)
    told = f"{done.stdout.strip()} of {here.ranks} ranks met by {pmi}"
    if done.stdout.strip() != str(here.ranks):
        return Finding("mpi", "note", told, f"the library does not speak {pmi}: load another MPI, or {_TCP}")
    return Finding("mpi", "good", told)


def _locking(folder: Path) -> Finding:
    """A lock that this process has must be refused to another."""
    import fcntl

    do = "prepare's cache and studies need locks: choose a folder on another file system (or set CLEW_CACHE)"
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".clew-doctor-") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            taken = subprocess.run([sys.executable, "-c", _LOCK, file.name], capture_output=True, check=False)
    except OSError as error:
        return Finding("locks", "bad", f"{folder}: {error.strerror}", do)
    if taken.returncode == 0:
        return Finding("locks", "bad", f"{folder}: two processes can hold the same lock", do)
    return Finding("locks", "good", f"kept in {folder}")


def _places(folder: Path, site: Site | None) -> Mapping[str, Path]:
    places = {"space here": folder, "temporary space": Path(tempfile.gettempdir())}
    if site is not None and site.scratch is not None:
        places["scratch"] = Path(os.path.expandvars(site.scratch))
    return places


def _space(name: str, place: Path) -> Finding:
    try:
        free = shutil.disk_usage(place).free
        with tempfile.NamedTemporaryFile(dir=place, prefix=".clew-doctor-") as file:
            file.write(b"x" * 4096)
            file.flush()
    except OSError as error:
        return Finding(name, "bad", f"{place}: {error.strerror}", "choose a folder that is there and can be written")
    told = f"{free / 1e9:,.1f} GB free in {place}"
    if free < _SPACE:
        return Finding(name, "bad", told, "make room: `clew cache prune` removes what is oldest")
    return Finding(name, "good", told)


def _ports() -> Finding:
    """Ranks find each other by the host's name, so it must lead back here."""
    host = socket.gethostname()
    try:
        with socket.create_server((host, 0)) as server:
            address, port = server.getsockname()[:2]
            with socket.create_connection((host, port), timeout=5):
                return Finding("ports", "good", f"{host} is {address} and can be reached")
    except OSError as error:
        do = "the host's name must lead to one of its addresses: name the `interface` in the profile, mend /etc/hosts"
        return Finding("ports", "bad", f"{host} cannot be reached from itself: {error}", do)


def _service(server: str | None) -> Finding:
    if not server:
        return Finding("service", "good", "none (CLEW_SERVER is not set): runs are kept as files")
    try:
        _date(server)
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        do = "runs go on and their records are sent later; check CLEW_SERVER, the network and the server"
        return Finding("service", "bad", f"{server} does not answer: {reason}", do)
    return Finding("service", "good", f"{server} answers")


def _date(server: str) -> float | None:
    """The time by a server's clock, where it tells."""
    try:
        with urllib.request.urlopen(server, timeout=10) as answer:
            told = answer.headers.get("Date")
    except urllib.error.HTTPError as error:  # it is there, and says no
        told = error.headers.get("Date")
    return email.utils.parsedate_to_datetime(told).timestamp() if told else None


def _clock(folder: Path, server: str | None) -> Finding:
    """This host's clock against those of the file system and of the service."""
    skews: dict[str, float] = {}
    with contextlib.suppress(OSError), tempfile.NamedTemporaryFile(dir=folder, prefix=".clew-doctor-") as file:
        before = time.time()
        Path(file.name).touch()
        skews["the file system's"] = Path(file.name).stat().st_mtime - (before + time.time()) / 2
    with contextlib.suppress(OSError, ValueError):
        date = _date(server) if server else None
        if date is not None:
            skews["the service's"] = date + 0.5 - time.time()  # whole seconds
    who, skew = max(skews.items(), key=lambda pair: abs(pair[1]), default=("", 0.0))
    told = f"within {abs(skew):.1f} s of {who}" if who else "nothing to compare it with"
    verdicts: tuple[Verdict, ...] = ("good", "note", "bad")
    verdict = verdicts[sum(abs(skew) > limit for limit in _SKEW)]
    return Finding("clock", verdict, told, "" if verdict == "good" else "have the host's clock set (NTP)")


def scheduler(site: Site | None) -> Finding:
    """Whether jobs can be handed in: at a site, or with what commands there are."""
    if site is None:
        found: dict[str, Callable[[], str | None]] = {
            "Slurm": lambda: shutil.which("sbatch"),
            "HTCondor": lambda: shutil.which("condor_submit"),
        }
        there = [name for name, look in found.items() if look()]
        told = (
            f"{' and '.join(there)}: `clew site add` lets clew use it" if there else "none here: runs are started here"
        )
        return Finding("scheduler", "good", told)
    problems = scheduler_at(site).problems()
    if problems:
        return Finding("scheduler", "bad", "; ".join(problems), f"mend the profile, or ask the people of {site.name}")
    return Finding("scheduler", "good", f"{site.scheduler} takes jobs for {site.name}")


def storage(site: Site) -> Finding:
    """Whether something can read what the profile calls storage."""
    if site.storage is None:
        return Finding("storage", "good", "none in the profile")
    do = "check the address and your credentials; s3://, root:// and rucio: need the extras s3, xrootd and rucio"
    named = stores.mask_secrets(site.storage)
    try:
        found = stores.expand(site.storage)
    except (ConfigError, DataError) as error:
        return Finding("storage", "bad", str(error), do)
    if found or (not stores.is_url(site.storage) and stores.local_path(site.storage).exists()):
        return Finding("storage", "good", f"{named} can be read")
    if stores.is_url(site.storage):
        return Finding("storage", "note", f"{named} answers, and has no file right there", do)
    return Finding("storage", "bad", f"{named}: no such folder", do)
