"""The command line of clew, with the times of the phases of a preparation written to a JSON file.

    python benchmarks/_prepare_phases.py PHASES.json prepare tracking --input events --output dataset

Under MPI the first rank writes the file.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path

START = time.perf_counter()


def main() -> None:
    """Run the command, and write the seconds of each phase, of its imports, and of everything outside of workers."""
    from _contest import timed

    from clew.cli.main import run
    from clew.data.prepare import executors
    from clew.data.prepare.assembly import DatasetAssembly
    from clew.data.prepare.plan import PreparePlan

    target, sys.argv = Path(sys.argv[1]), ["clew", *sys.argv[2:]]
    imported = time.perf_counter()
    names = {"plan": (PreparePlan, "__init__"), "workers": (executors.TaskQueue, "run")}
    names |= {"assembly": (DatasetAssembly, "write"), "publish": (DatasetAssembly, "publish")}
    with contextlib.ExitStack() as stack:
        spans = {name: stack.enter_context(timed(*place)) for name, place in names.items()}
        try:
            run()
        finally:
            end = time.perf_counter()
            seconds = {name: sum(stop - start for start, stop in each) for name, each in spans.items()}
            if spans["workers"]:  # not on ranks that only serve
                seconds |= {"imports": imported - START, "all": end - START, "cpu_of_main": time.process_time()}
                seconds["serial"] = seconds["all"] - seconds["workers"]
                target.write_text(json.dumps({name: round(value, 3) for name, value in seconds.items()}))


if __name__ == "__main__":
    main()
