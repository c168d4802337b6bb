"""What the processes of a run print is kept in its folder: lines of all ranks, errors, the end of a long output."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from clew import Run
from clew.core.printed_lines import PrintedLines
from clew.runs.console_log import ConsoleReader

CLEW = [sys.executable, "-c", "from clew.cli.main import run; run()"]
NET = """
import os, sys
from torch import nn


class Net(nn.Linear):
    calls = 0

    def forward(self, x):
        Net.calls += 1
        if Net.calls == 1:
            print("first call, password=hunter2")
            print("a warning of mine", file=sys.stderr)
        if Net.calls == 3 and os.environ.get("FAILS"):
            raise ZeroDivisionError("no beam")
        return super().forward(x)


def build():
    return Net(2, 1)
"""


def train(folder: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`clew train` of a model that prints, in the foreground."""
    (folder / "net.py").write_text(NET)
    x = np.random.default_rng(0).normal(size=(200, 2)).astype(np.float32)
    np.savez(folder / "data.npz", x=x, y=x.sum(axis=1))
    columns = ["--train", "data.npz", "--features", "x", "--labels", "y", "--loss", "mse"]
    command = [*CLEW, "train", "--model", "net.py:build", *columns, "--output", "runs/one", "--epochs", "1", *options]
    variables = {**os.environ, "CLEW_SERVER": "", "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=variables, timeout=240)


def script(folder: Path, text: str) -> tuple[subprocess.CompletedProcess[str], str]:
    """Run Python code with a run called `run`. Return the process, and what it recorded."""
    Run.create(folder / "run", config={"recipe": ""}, environment={})
    head = "import os, signal, sys, time\nfrom clew import Run\nfrom clew.runs.console_log import recorded_console\n"
    command = [sys.executable, "-c", f"{head}run = Run.open('run')\n{text}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=120)
    return done, ConsoleReader(Run.open(folder / "run")).new_text()


@pytest.mark.timeout(300)
def test_a_foreground_training_keeps_what_all_ranks_print(tmp_path: Path) -> None:
    done = train(tmp_path, "--workers", "2")
    assert done.returncode == 0, done.stderr
    assert "hunter2" in done.stdout and "a warning of mine" in done.stderr  # printed as before
    text = ConsoleReader(Run.open(tmp_path / "runs/one")).new_text()
    assert "hunter2" not in text
    for rank in (0, 1):
        assert f"[rank {rank}] first call, password=***\n" in text
        assert f"[rank {rank}] a warning of mine\n" in text
    assert "run runs/one\n" in text and "epoch   1/1" in text
    logs = subprocess.run([*CLEW, "logs", "runs/one"], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert logs.stdout == text


@pytest.mark.timeout(300)
def test_the_log_of_a_failed_training_ends_with_the_error(tmp_path: Path) -> None:
    done = train(tmp_path, FAILS="1")
    assert done.returncode != 0
    last = ConsoleReader(Run.open(tmp_path / "runs/one")).new_text().splitlines()[-1]
    assert last.startswith("clew: ") and "no beam" in last


def test_an_unknown_error_is_recorded_with_its_traceback(tmp_path: Path) -> None:
    _, text = script(tmp_path, "with recorded_console(run):\n    print('now')\n    [].remove(1)\n")
    assert text.startswith("now\nTraceback") and "line 7" in text and "ValueError" in text.splitlines()[-1]


def test_a_long_output_keeps_its_start_and_its_end(tmp_path: Path) -> None:
    loop = "for number in range(60_000):\n        print('line', number, '.' * 30)\n"
    done, text = script(tmp_path, f"with recorded_console(run):\n    {loop}")
    assert len(done.stdout.splitlines()) == 60_000
    lines = text.splitlines()
    assert lines[0].startswith("line 0 ") and lines[-1].startswith("line 59999 ")
    (left_out,) = [line for line in lines if "not recorded" in line]
    assert len(lines) - 1 + int(left_out.split()[1].replace(",", "")) == 60_000
    assert (tmp_path / "run" / "records" / "console.jsonl").stat().st_size < 4_000_000


def test_signal_handlers_threads_and_forks_leave_a_complete_stream(tmp_path: Path) -> None:
    code = """
import threading
signal.signal(signal.SIGALRM, lambda *_: sys.stdout.write("handler\\n"))
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
with recorded_console(run):
    threads = [threading.Thread(target=lambda: [sys.stdout.write("thread\\n") for _ in range(2000)]) for _ in range(3)]
    [each.start() for each in threads]
    for _ in range(2000):
        sys.stdout.write("main\\n")
    [each.join() for each in threads]
    signal.setitimer(signal.ITIMER_REAL, 0)
    if os.fork() == 0:
        print("child", flush=True)
        os._exit(0)
    os.wait()
"""
    done, text = script(tmp_path, code)
    assert done.returncode == 0, done.stderr
    lines = text.splitlines()
    assert (lines.count("main"), lines.count("thread")) == (2000, 6000)
    assert "handler" in lines and "child" not in lines and "child" in done.stdout
    numbers = [record["seq"] for record in Run.open(tmp_path / "run").records("console")]
    assert numbers == list(range(len(numbers)))


@pytest.mark.parametrize(
    ("parts", "lines"),
    [
        (["one", " line\n"], ["one line"]),
        (["\x1b[32mgreen\x1b[0m\r\n"], ["green"]),
        ([" 10%\r", " 20%\r", "done\n"], ["done"]),  # tqdm
        (["\r\x1b[2K", "printed\nbar 1", "\r\x1b[2Kbar 2", "\r\x1b[2K"], ["printed"]),  # a bar of rich
        (["a\nb", "\r\x1b[2K\x1b[1A\x1b[2Knew\na\nb", "\r\x1b[2K\x1b[1A\x1b[2K"], ["a", "new"]),  # two lines of rich
        (["zero \x00 byte \ud800\n", "x" * 5000 + "\n"], ["zero  byte ?", "x" * 4000 + " ..."]),
    ],
)
def test_lines_are_those_that_a_terminal_keeps(parts: list[str], lines: list[str]) -> None:
    stream = PrintedLines()
    assert [line for part in parts for line in stream.feed(part)] == lines


def test_a_full_disk_does_not_end_a_training_that_prints(tmp_path: Path) -> None:
    code = """
import resource
with recorded_console(run):
    print("first")
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))  # writing more to any file fails, as on a full disk
    for number in range(50):
        print("line", number)
"""
    done, text = script(tmp_path, code)
    assert done.returncode == 0, done.stderr
    assert "line 49" in done.stdout and text.startswith("first\n") and "line 49" not in text


def test_a_last_line_without_an_end_is_recorded(tmp_path: Path) -> None:
    text = "with recorded_console(run):\n    print('one')\n    print('two', end='')\n    sys.stderr.write('three')"
    assert script(tmp_path, text)[1] == "one\ntwo\nthree\n"
