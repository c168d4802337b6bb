"""Ctrl-C in a terminal: the first one stops a training with a checkpoint, the second one at once."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from clew import Run
from tests.cli import SCRIPT, script

pytestmark = pytest.mark.timeout(400)
LONG = ("train", "top_tagger.py", "--dataset", "dataset", "--epochs", "1000000", "--set", "train.threads=1")
WAYS = {
    "single": (),
    "allreduce": ("--workers", "2"),
    "downpour": ("--workers", "2", "--strategy", "downpour"),
    "one process": ("--strategy", "easgd", "--set", "train.asynchronous.masters=0"),
    "background validation": ("--set", "train.validation=background"),
    "replicas": ("--replicas", "2"),
}


class Terminal:
    """A command in a pseudo-terminal of its own, as a user has it."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.text = ""
        self.pid, self._terminal = pty.fork()
        if not self.pid:
            os.chdir(folder)
            os.execv(SCRIPT, [str(SCRIPT), *words])

    def read(self, until: str, *, seconds: float = 180) -> None:
        """Read the output until it contains a text."""
        end = time.monotonic() + seconds
        while until not in self.text:
            assert time.monotonic() < end, self.text[-3000:]
            assert self._read_some(), self.text[-3000:]

    def press_ctrl_c(self) -> None:
        os.write(self._terminal, b"\x03")

    def wait(self) -> int:
        """Read the rest; return the exit code."""
        while self._read_some():
            pass
        os.close(self._terminal)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def _read_some(self) -> bool:
        if not select.select([self._terminal], [], [], 1)[0]:
            return True
        try:
            data = os.read(self._terminal, 65536)
        except OSError:  # all processes have closed it
            return False
        self.text += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", data.decode(errors="replace"))
        return bool(data)


def steps(run: Run) -> list[dict[str, Any]]:
    return [record for record in run.records(run.main_stream) if record["kind"] == "step"]


def wait_for_steps(run: Run) -> None:
    """Wait until a step was recorded, by the run or by a member of an ensemble."""
    while not any(steps(each) for each in (run, *run.replicas())):
        time.sleep(0.2)


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
def test_the_first_ctrl_c_writes_a_checkpoint_and_says_how_to_resume(tagger: Path, way: str) -> None:
    run = Run(tagger / "runs/top_tagger-001")
    terminal = Terminal(tagger, *LONG, *WAYS[way])
    wait_for_steps(run)
    terminal.press_ctrl_c()
    assert terminal.wait() == 130, terminal.text[-3000:]
    message = " ".join(terminal.text.split())
    assert "press Ctrl-C again to stop at once" in message
    assert "resume with: clew train --resume runs/top_tagger-001" in message
    assert "Traceback" not in message and "KeyboardInterrupt" not in message
    assert run.state == "interrupted"
    shown = script("runs", "show", "runs/top_tagger-001", folder=tagger).out
    assert "interrupted (Ctrl-C)" in shown if way != "replicas" else "Ctrl-C" in shown
    assert "KeyboardInterrupt" not in shown
    assert not [each for each in psutil.process_iter() if _works_in(each, tagger)]


def _works_in(process: psutil.Process, folder: Path) -> bool:
    try:
        return process.cwd() == str(folder) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


@pytest.mark.long
@pytest.mark.parametrize("way", ["single", "allreduce", "downpour"])
def test_an_interrupted_run_is_resumed_from_the_step_it_stopped_at(tagger: Path, way: str) -> None:
    run = Run(tagger / "runs/top_tagger-001")
    terminal = Terminal(tagger, *LONG[:3], "dataset", "--epochs", "200", "--set", "train.threads=1", *WAYS[way])
    wait_for_steps(run)
    terminal.press_ctrl_c()
    assert terminal.wait() == 130, terminal.text[-3000:]
    stopped = re.search(r"interrupted \(Ctrl-C\) at step (\d+)", " ".join(terminal.text.split()))
    assert stopped is not None
    resumed = script("train", "--resume", "runs/top_tagger-001", folder=tagger)
    assert resumed.code == 0, resumed
    (record,) = run.records(kind="resume")
    assert record["step"] == int(stopped[1])
    assert run.state == "finished"


SLOW_STEP = """if model.training:
            import os, pathlib, time

            pathlib.Path("{folder}", f"in-step-{{os.getpid()}}").touch()
            time.sleep(600)
        return model(batch["x"].float())"""


@pytest.mark.long
@pytest.mark.parametrize("way", ["single", "allreduce", "downpour"])
def test_the_second_ctrl_c_stops_at_once(tagger: Path, way: str) -> None:
    recipe = tagger / "top_tagger.py"
    recipe.write_text(recipe.read_text().replace('return model(batch["x"].float())', SLOW_STEP.format(folder=tagger)))
    terminal = Terminal(tagger, *LONG, *WAYS[way])
    while len(list(tagger.glob("in-step-*"))) < (2 if WAYS[way] else 1):
        time.sleep(0.1)
    terminal.press_ctrl_c()
    terminal.read("press Ctrl-C again")
    terminal.press_ctrl_c()
    assert terminal.wait() == 130
    assert "Traceback" not in terminal.text and "clew: interrupted" in terminal.text
    run = Run.open(tagger / "runs/top_tagger-001")
    end = run.end()
    assert run.state == "interrupted" and end is not None and end["message"] == "interrupted (Ctrl-C)"
    assert not [each for each in psutil.process_iter() if _works_in(each, tagger)]


def test_a_signal_to_the_process_alone_reaches_its_workers(tagger: Path) -> None:
    run = Run(tagger / "runs/top_tagger-001")
    command = [str(SCRIPT), *LONG, "--workers", "2"]
    with subprocess.Popen(command, cwd=tagger, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        wait_for_steps(run)
        process.send_signal(signal.SIGINT)
        _, message = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "resume with: clew train --resume runs/top_tagger-001" in message
    assert run.state == "interrupted" and run.states()


def test_ctrl_c_in_a_preparation_leaves_nothing(tagger: Path) -> None:
    recipe = tagger / "top_tagger.py"
    recipe.write_text(recipe.read_text().replace("jets = events", "__import__('time').sleep(600); jets = events"))
    terminal = Terminal(
        tagger, "prepare", "top_tagger.py", "--input", "events.h5", "--output", "other", "--workers", "2"
    )
    time.sleep(15)
    terminal.press_ctrl_c()
    assert terminal.wait() == 130
    assert "Traceback" not in terminal.text
    assert not list(tagger.glob("*other*"))
