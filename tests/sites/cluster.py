"""A private Slurm on loopback: munged, slurmctld and three virtual nodes, each with 2 cores and 2 pretended GPUs."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

NODES = ("n1", "n2", "n3")
_CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/munge.sock,cred_expire=5
CryptoType=crypto/munge
SlurmctldPort={control}
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
TmpFS={folder}/tmp/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
AccountingStorageType=accounting_storage/none
GresTypes=gpu
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=2000
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,sched_min_interval=100000,batch_sched_delay=0
ReturnToService=2
SlurmctldTimeout=60
SlurmdTimeout=8
MinJobAge={memory}
MaxJobCount={max_jobs}
KillWait=5
MpiDefault=none
SlurmdParameters=config_overrides
{nodes}
PartitionName=debug Nodes=n1,n2,n3 Default=YES MaxTime=60 State=UP OverSubscribe=NO
"""
_NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 RealMemory=4000 Gres=gpu:2"


def missing() -> str:
    """Return why no cluster can run here; '' if it can."""
    if os.geteuid() != 0:
        return "a private Slurm needs root"
    lacking = [name for name in ("slurmctld", "slurmd", "munged") if shutil.which(name, path=PATH) is None]
    return f"{' and '.join(lacking)} not installed (apt-get install slurm-wlm munge)" if lacking else ""


PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"


class Cluster:
    """A context manager. Commands of Slurm find the cluster through $SLURM_CONF."""

    def __init__(self, folder: Path, *, max_jobs: int = 1000, memory: int = 600) -> None:
        """Slurm stores at most `max_jobs` jobs, and ended ones for `memory` seconds."""
        self.folder, self.conf = folder, folder / "slurm.conf"
        self._max_jobs, self._memory = max_jobs, memory

    def __enter__(self) -> Cluster:
        for name in ("state", "spool", "log", "munge", *(f"tmp/{node}" for node in NODES)):
            (self.folder / name).mkdir(parents=True)
        for place in (self.folder, *self.folder.parents):  # the user of munged must have access
            with contextlib.suppress(OSError):
                if place != Path("/"):
                    place.chmod(place.stat().st_mode | 0o111)
        self._write()
        self._munge()
        self._run("slurmctld")
        for node in NODES:
            self.start(node)
        self._wait()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(subprocess.SubprocessError):
            self.call("scancel", "--user=root", "--signal=KILL", "--full")
        for file in (*self.folder.glob("slurm*.pid"), *(self.folder / "munge").glob("*.pid")):
            self._end(file)

    def call(self, *words: str) -> str:
        """The output of a command of Slurm."""
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=60, env={**os.environ, "SLURM_CONF": str(self.conf)}
        )
        return done.stdout + done.stderr

    def start(self, node: str) -> None:
        """Start a node."""
        self._run("slurmd", "-N", node)

    def kill(self, node: str) -> None:
        """Kill a node: its daemon and all its processes."""
        self._end(self.folder / f"slurmd-{node}.pid", signal.SIGKILL)
        tasks = [process for process in psutil.process_iter() if self._on(process, node)]
        for process in tasks:
            with contextlib.suppress(psutil.Error):
                parent = process.parent()
                if parent is not None and parent.name().startswith("slurmstepd"):
                    parent.kill()
                process.kill()

    def _on(self, process: psutil.Process, node: str) -> bool:
        """Whether a process is a task on a node of this cluster."""
        with contextlib.suppress(psutil.Error, OSError):
            environment = process.environ()
            return environment.get("SLURMD_NODENAME") == node and environment.get("SLURM_CONF") == str(self.conf)
        return False

    def _write(self) -> None:
        host, ports = socket.gethostname().partition(".")[0], free_ports(1 + len(NODES))
        nodes = [_NODE.format(name=name, host=host, port=port) for name, port in zip(NODES, ports[1:], strict=True)]
        values = {
            "host": host,
            "folder": self.folder,
            "control": ports[0],
            "max_jobs": self._max_jobs,
            "memory": self._memory,
        }
        self.conf.write_text(_CONF.format(**values, nodes="\n".join(nodes)))
        for number in (0, 1):
            os.mknod(self.folder / f"gpu{number}", 0o20666, os.makedev(1, 3))
        (self.folder / "gres.conf").write_text(f"NodeName=n[1-3] Name=gpu File={self.folder}/gpu[0-1]\n")

    def _munge(self) -> None:
        place = self.folder / "munge"
        key = place / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        for path in (place, key):
            shutil.chown(path, "munge", "munge")
        names = (
            "socket=munge.sock",
            "key-file=munge.key",
            "pid-file=munged.pid",
            "log-file=munged.log",
            "seed-file=seed",
        )
        options = [f"--{name.partition('=')[0]}={place / name.partition('=')[2]}" for name in names]
        subprocess.run(
            ["su", "-s", "/bin/sh", "munge", "-c", " ".join([str(shutil.which("munged", path=PATH)), *options])],
            check=True,
            timeout=60,
        )

    def _run(self, name: str, *words: str) -> None:
        command = [str(shutil.which(name, path=PATH)), *words]
        subprocess.run(command, check=True, timeout=60, env={**os.environ, "SLURM_CONF": str(self.conf)})

    def _wait(self) -> None:
        end = time.monotonic() + 60
        while self.call("sinfo", "-h", "-o", "%D %t").strip() != "3 idle":
            assert time.monotonic() < end, self.call("sinfo")
            time.sleep(0.2)

    def _end(self, file: Path, number: int = signal.SIGTERM) -> None:
        """Settings from the file only."""
        with contextlib.suppress(OSError, ValueError, psutil.Error):
            process = psutil.Process(int(file.read_text()))
            process.send_signal(number)
            with contextlib.suppress(psutil.TimeoutExpired):
                process.wait(10)


def free_ports(count: int) -> Sequence[int]:
    """Return ports of loopback that no process uses."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
