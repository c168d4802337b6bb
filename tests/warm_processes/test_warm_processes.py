"""A forked process is like one that was started as usual."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests import warm_processes
from tests.cli import SCRIPT

FACTS = """
import os, resource, signal, sys, threading, clew
print(sys.argv, sys.orig_argv, sys.path, os.getcwd(), __name__, sys.stdin.read())
print(sorted(os.environ.items()) == sorted(line.split("=", 1) for line in
      open("/proc/self/environ").read().strip(chr(0)).split(chr(0))))
print(os.environ["MINE"], "CLEW_PADDING" in os.environ, threading.active_count(), os.umask(0))
print(os.getsid(0) == os.getpid())
print([str(signal.getsignal(number)) for number in (2, 10, 13, 15)], resource.getrlimit(resource.RLIMIT_NOFILE))
print(sys.stdout.encoding, sys.stdout.line_buffering, sys.stderr.errors, sorted(os.sched_getaffinity(0)))
"""
ENDINGS = (
    "import clew, sys; sys.exit(7)",
    "import clew, sys; sys.exit('a message')",
    "import clew; raise KeyboardInterrupt",
    "import clew; {}['missing']",
    "import clew, os; os.kill(os.getpid(), 9)",
    "import clew, atexit; atexit.register(print, 'at the end'); print('first')",
    "import clew, threading, time; threading.Thread(target=lambda: (time.sleep(0.1), print('later'))).start()",
)
Outcome = tuple[int, str, str]


def outcome(*words: str | Path, **options: Any) -> Outcome:
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, **options)
    return done.returncode, done.stdout, done.stderr


def both(*words: str | Path, **options: Any) -> tuple[Outcome, Outcome]:
    """What a command does when it is forked, and when it is started as usual."""
    forked = outcome(*words, **options)
    with warm_processes.pause():
        return forked, outcome(*words, **options)


@pytest.mark.parametrize("options", [[], ["-P"]])
def test_it_knows_the_same_of_itself(options: list[str], tmp_path: Path) -> None:
    words = [sys.executable, *options, "-c", FACTS, "one", "two"]
    environment = {**os.environ, "MINE": "a value"}
    forked, started = both(*words, cwd=tmp_path, env=environment, input="text", start_new_session=True)
    assert forked == started and forked[0] == 0, forked


@pytest.mark.parametrize("code", ENDINGS)
def test_it_ends_alike(code: str) -> None:
    forked, started = both(sys.executable, "-c", code)
    assert forked == started


@pytest.mark.parametrize("words", [("--version",), ("train", "--help"), ("train", "nothing"), ("nothing",)])
def test_a_command_of_clew_answers_alike(words: tuple[str, ...]) -> None:
    forked, started = both(SCRIPT, *words)
    assert forked == started


def test_a_module_runs_alike(tmp_path: Path) -> None:
    forked, started = both(sys.executable, "-P", "-m", "clew.cli.run_task", tmp_path / "missing")
    assert forked[0] == started[0] != 0
    assert forked[2].splitlines()[-1] == started[2].splitlines()[-1]


def test_it_is_forked_and_a_descendant_of_this_process() -> None:
    code = "import clew, sys, time; print('torch' in set(sys.__dict__['modules']), flush=True); time.sleep(100)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "True\n"
        assert process.pid in [each.pid for each in psutil.Process().children(recursive=True)]
        assert process.poll() is None
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(100) == -signal.SIGTERM
        assert process.poll() == -signal.SIGTERM


def test_its_processes_end_with_it() -> None:
    code = "import clew, subprocess, sys; print(subprocess.Popen([sys.executable, '-c', sys.argv[1]]).pid, flush=True)"
    inner = "import clew, os, time\nparent = os.getppid()\nwhile os.getppid() == parent: time.sleep(0.05)"
    with subprocess.Popen([sys.executable, "-c", code, inner], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.05)


def test_a_folder_that_is_missing_is_reported(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="missing"):
        outcome(sys.executable, "-c", "import clew", cwd=tmp_path / "missing")


@pytest.mark.exec
def test_a_marked_test_starts_processes_as_usual() -> None:
    code = "import clew, sys; print('torch' in set(sys.__dict__['modules']))"
    assert outcome(sys.executable, "-c", code) == (0, "False\n", "")
