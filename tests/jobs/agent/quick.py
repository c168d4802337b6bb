"""An agent whose jobs are lines of Python instead of clew commands, for tests of the queue.

Run as `python -m tests.jobs.agent.quick SERVER FOLDER NAME CPUS [GROUP]`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from clew.client.job import JobOrder
from clew.jobs.agent.folder import AgentFolder
from clew.jobs.agent.job_target import Offer
from clew.jobs.agent.setup import AgentOptions, create_agent
from clew.jobs.task import ProgramTask


def code(order: JobOrder, root: AgentFolder) -> ProgramTask:
    trials = [each.model_dump() for each in order.trials]
    return ProgramTask(command=(sys.executable, "-c", order.spec["code"], json.dumps([order.study, trials])))


def main() -> None:
    server, folder, name, cpus, *group = sys.argv[1:]
    site = os.environ.get("CLEW_TEST_ON")
    options = AgentOptions(
        server=server,
        folder=Path(folder),
        name=name,
        group=group[0] if group else None,
        offer=Offer(cpus=int(cpus), gpus=None if site else 0),
        site=site,
    )
    agent = create_agent(options, print_message=lambda text: print(text, flush=True), task_of=code)
    signal.signal(signal.SIGTERM, lambda *_: agent.stopping.set())
    agent.run()


if __name__ == "__main__":
    main()
