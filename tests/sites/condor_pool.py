"""A private HTCondor pool on loopback: collector, negotiator, schedd and one machine with 4 cores.

HTCondor is not part of Debian 12. `tools/sites-install condor` unpacks the packages of Debian 13 with the libraries
they need into `.venv-condor`, and makes the programs use these libraries; nothing is installed in the system.

Daemons that root starts switch users, and never run jobs as root. So for root everything runs in a user namespace,
where its files belong to an ordinary user.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil

from tests.sites.cluster import free_ports

RELEASE = Path(__file__).parents[2] / ".venv-condor" / "usr"
COMMANDS = ("condor_submit", "condor_q", "condor_rm", "condor_history", "condor_status")
_NAMESPACE = ("unshare", "--user", "--map-user=1", "--map-group=1")
"""For root: processes that see their files as those of user 1 (daemon)."""
_CONFIG = """
RELEASE_DIR = {release}
BIN = $(RELEASE_DIR)/bin
SBIN = $(RELEASE_DIR)/sbin
LIB = $(RELEASE_DIR)/lib/condor
LIBEXEC = $(RELEASE_DIR)/libexec/condor
LOCAL_DIR = {folder}
LOG = $(LOCAL_DIR)/log
SPOOL = $(LOCAL_DIR)/spool
EXECUTE = $(LOCAL_DIR)/execute
RUN = $(LOCAL_DIR)/run
LOCK = $(LOCAL_DIR)/lock
SEC_PASSWORD_DIRECTORY = $(LOCAL_DIR)/passwords
SEC_TOKEN_SYSTEM_DIRECTORY = $(LOCAL_DIR)/tokens
NETWORK_INTERFACE = 127.0.0.1
CONDOR_HOST = 127.0.0.1
COLLECTOR_HOST = 127.0.0.1:{port}
DAEMON_LIST = MASTER COLLECTOR NEGOTIATOR SCHEDD STARTD
USE_SHARED_PORT = False
USE_PROCD = True
UID_DOMAIN = clew.test
FILESYSTEM_DOMAIN = clew.test
ALLOW_ADMINISTRATOR = *
ALLOW_READ = *
ALLOW_WRITE = *
ALLOW_DAEMON = *
ALLOW_NEGOTIATOR = *
SEC_DEFAULT_AUTHENTICATION_METHODS = FS
NUM_CPUS = 4
MEMORY = 4096
NUM_SLOTS_TYPE_1 = 1
SLOT_TYPE_1 = 100%
SLOT_TYPE_1_PARTITIONABLE = True
START = True
SUSPEND = False
PREEMPT = False
KILL = False
WANT_SUSPEND = False
RUNBENCHMARKS = False
NEGOTIATOR_INTERVAL = 2
NEGOTIATOR_MIN_INTERVAL = 1
NEGOTIATOR_CYCLE_DELAY = 1
SCHEDD_INTERVAL = 2
UPDATE_INTERVAL = 5
"""


def missing() -> str:
    """Return why no pool can run here; '' if it can."""
    return "" if (RELEASE / "sbin" / "condor_master").exists() else "no HTCondor here (tools/sites-install condor)"


class Pool:
    """A context manager. Commands of HTCondor are in `commands` and find the pool through $CONDOR_CONFIG."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.config, self.commands = folder, folder / "condor_config", folder / "bin"
        self._environment = {**os.environ, "CONDOR_CONFIG": str(self.config)}
        self._prefix = _NAMESPACE if os.geteuid() == 0 else ()

    def __enter__(self) -> Pool:
        for name in ("log", "spool", "execute", "run", "lock", "bin"):
            (self.folder / name).mkdir(parents=True)
        for name in ("passwords", "tokens"):
            (self.folder / name).mkdir(mode=0o700)
        (port,) = free_ports(1)
        self.config.write_text(_CONFIG.format(release=RELEASE, folder=self.folder, port=port))
        for name in COMMANDS:
            command = self.commands / name
            words = " ".join([*self._prefix, str(RELEASE / "bin" / name)])
            command.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
            command.chmod(0o755)
        master = [*self._prefix, str(RELEASE / "sbin" / "condor_master"), "-f"]
        with (self.folder / "log" / "output").open("w") as output:
            self._master = subprocess.Popen(master, env=self._environment, stdout=output, stderr=output)
        self._wait()
        return self

    def __exit__(self, *_: object) -> None:
        processes = [psutil.Process(self._master.pid), *psutil.Process(self._master.pid).children(recursive=True)]
        self._master.send_signal(signal.SIGQUIT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._master.wait(20)
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.kill()

    def call(self, *words: str) -> str:
        """The output of a command of HTCondor."""
        command = [str(self.commands / words[0]), *words[1:]]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=self._environment)
        return done.stdout + done.stderr

    def _wait(self) -> None:
        end = time.monotonic() + 120
        while "Unclaimed" not in self.call("condor_status") or "Schedd" not in self.call("condor_q"):
            assert time.monotonic() < end, self.call("condor_status") + self.call("condor_q")
            time.sleep(1)
