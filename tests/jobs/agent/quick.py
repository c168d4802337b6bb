"""An agent whose jobs are a line of Python each, in place of clew: where the point is the queue.

Run as `python -m tests.jobs.agent.quick SERVER FOLDER NAME CPUS [GROUP]`.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from clew.client.job import JobOrder
from clew.jobs.agent.folder import AgentFolder
from clew.jobs.agent.setup import make


def code(order: JobOrder, root: AgentFolder) -> tuple[str, ...]:
    return (sys.executable, "-c", order.spec["code"])


def main() -> None:
    server, folder, name, cpus, *group = sys.argv[1:]
    site = os.environ.get("CLEW_TEST_ON")
    agent = make(
        server,
        folder=Path(folder),
        name=name,
        group=group[0] if group else None,
        cpus=int(cpus),
        gpus=None if site else 0,
        memory=None,
        idle=None,
        tell=lambda text: print(text, flush=True),
        command=code,
        on=site,
    )
    signal.signal(signal.SIGTERM, lambda *_: agent.stopping.set())
    agent.run()


if __name__ == "__main__":
    main()
