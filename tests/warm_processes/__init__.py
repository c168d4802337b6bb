"""Python processes of the tests that start in milliseconds instead of seconds.

Many tests run commands in processes of their own, and importing torch takes each of them two to four seconds. In the
files listed here such a process is forked from a server that has the modules loaded (`server`). It is a real process
in every other way: it has its own folder, arguments, environment, input and output, signals, session, limits and exit
code.

`install` replaces how `subprocess.Popen` and `multiprocessing` start Python (`client`). A process that cannot be
forked (another program, other options of Python, other values of variables that are read at import) is started as
usual. So are all processes of a test that is marked `exec`.
"""

from tests.warm_processes.client import forking, install, pause

FORKED = (
    "tests/cli/test_first_attempts.py",
    "tests/jobs/launchers/test_local.py",
    "tests/jobs/launchers/test_warm.py",
    "tests/server/test_push.py",
    "tests/training/asynchronous/test_elastic.py",
    "tests/tuning/test_jobs.py",
    "tests/warm_processes/",
)
"""Files whose processes are forked. Add one after its tests have passed with `CLEW_TEST_FORK=all`."""

__all__ = ["FORKED", "forking", "install", "pause"]
