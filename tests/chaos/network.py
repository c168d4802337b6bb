"""A training across virtual hosts: a master, two workers on others, and links that fail between them.

`python -m tests.chaos.network FOLDER COMMAND...` takes the command of the master, and ends with its exit code.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from clew.bench.strategies.delayed_switch import INTERFACE
from clew.bench.strategies.hosts import Host, hosts, hosts_unavailable_reason
from tests.chaos.faults import Fault, Target

PORT = 7700
_CLEW = [sys.executable, "-c", "from clew.cli.main import run; run()"]
_NAMES = "hosts.json"
_SLOW = ("tbf", "rate", "100kbit", "burst", "16kb", "latency", "200ms")


class _LinkFault(Fault):
    """A fault of the link of one host, but not of the first, for some seconds."""

    @classmethod
    def missing(cls) -> str:
        return hosts_unavailable_reason()

    def strike(self, target: Target) -> None:
        while not (target.folder / _NAMES).exists() and target.process.poll() is None:
            time.sleep(0.2)
        if target.process.poll() is not None:
            return
        namespace = target.random.choice(json.loads((target.folder / _NAMES).read_text())[1:])
        seconds = target.random.uniform(1, 15)
        target.strikes.append(f"{self.name} of {namespace.rpartition('-')[2]} for {seconds:.0f} s")
        self.change(namespace)
        try:
            target.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.restore(namespace)

    def change(self, namespace: str) -> None:
        """Make the link worse."""
        raise NotImplementedError

    def restore(self, namespace: str) -> None:
        """Make the link as it was."""
        raise NotImplementedError


class DroppedLink(_LinkFault):
    """A host loses its connection, and gets it again: no packet arrives, and no connection is closed."""

    name = "dropped link"

    def change(self, namespace: str) -> None:
        _call("ip", "-n", namespace, "link", "set", INTERFACE, "down")

    def restore(self, namespace: str) -> None:
        _call("ip", "-n", namespace, "link", "set", INTERFACE, "up")


class ThrottledLink(_LinkFault):
    """A host can send only 100 kilobits per second."""

    name = "throttled link"

    def change(self, namespace: str) -> None:
        _call("tc", "-n", namespace, "qdisc", "add", "dev", INTERFACE, "root", *_SLOW)

    def restore(self, namespace: str) -> None:
        _call("tc", "-n", namespace, "qdisc", "del", "dev", INTERFACE, "root")


def _call(*command: str) -> None:
    subprocess.run(command, check=False, capture_output=True)  # the hosts may be gone: the training has ended


def main(folder: Path, command: list[str]) -> int:
    """Run a training with workers until its master ends; return the exit code of the master."""
    with hosts(3) as (master, *others):
        process = master.start([*command, "--listen", f"{master.address}:{PORT}"], output=sys.stdout.fileno())
        token = folder / "run" / "token"
        while not (token.exists() and (folder / "run" / "address").exists()) and process.poll() is None:
            time.sleep(0.2)
        workers = [_start_worker(host, master, token) for host in others if process.poll() is None]
        (folder / _NAMES).write_text(json.dumps([host.namespace for host in (master, *others)]))
        try:
            code = process.wait()
            for worker in workers:
                worker.wait(60)
        finally:
            (folder / _NAMES).unlink()
    return code


def _start_worker(host: Host, master: Host, token: Path) -> subprocess.Popen[str]:
    command = [*_CLEW, "worker", f"{master.address}:{PORT}", "--token-file", str(token)]
    return host.start(command, output=sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
