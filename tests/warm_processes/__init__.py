"""Python processes of the tests that start in milliseconds instead of seconds.

Many tests run commands in processes of their own, and importing torch takes each of them two to four seconds. Such
a process is forked from a server that has the modules loaded (`server`). It is a real process in every other way: it
has its own folder, arguments, environment, input and output, signals, session, limits and exit code.

`install` replaces how `subprocess.Popen` and `multiprocessing` start Python (`client`). A process that cannot be
forked (another program, other options of Python, other values of variables that are read at import) is started as
usual. So are all processes of a test that is marked `exec`.
"""

from tests.warm_processes.client import forking, install, pause

__all__ = ["forking", "install", "pause"]
