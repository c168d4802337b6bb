"""The private entry point of a script on the grid: `python3 -m clew.cli.jobs.panda_script WORKERS SCRIPT ARGUMENT...`.

`clew submit --kind script --on SITE` writes this command into a PanDA task. The job returns the run that the script
wrote, and its metrics as the job's metadata.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from clew.cli.main import report_errors


def run(workers: int, script: str, arguments: list[str]) -> int:
    """Run the script in the working folder, write what goes back to the user, and return its exit code."""
    from clew.jobs.task import ScriptTask, process_command, task_file, write_task
    from clew.tuning.panda import write_script_outputs

    here = Path.cwd()
    output = here / "run"
    task = ScriptTask(script=script, arguments=tuple(arguments), workers=workers, output=str(output))
    with tempfile.TemporaryDirectory() as folder:
        write_task(task, Path(folder))
        process = subprocess.Popen(process_command(task, task_file(Path(folder)), python=sys.executable))
        signal.signal(signal.SIGTERM, lambda number, _: process.send_signal(number))
        code = process.wait()
    write_script_outputs(output, folder=here)
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    report_errors(lambda: sys.exit(run(int(sys.argv[1]), sys.argv[2], sys.argv[3:])))
