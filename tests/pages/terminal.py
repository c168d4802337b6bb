"""Types the lines of a page: `clew` runs in the test process, other programs in bash, servers in the background."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

from tests.cli import Outcome, clew

SHELL = re.compile(r"[|<>$;&]|^(?!clew )")
"""A line with one of these is run by bash: a pipe, a redirection, a variable, another program than clew."""
NOTES = ("This is the only time it is shown.",)
"""What may be on stderr though all is right."""


def _needs_shell(line: str) -> bool:
    return bool(SHELL.search(re.sub(r"'[^']*'", "", line)))


def free_port() -> int:
    """A port of this machine that no process uses."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class Terminal:
    """Runs lines one after the other; variables that a line exports are set for later lines.

    In a line `{new port}` becomes a free port, `{port}` the last one of these, `{unique}` the number of the line, and
    `{here}` the working folder. What a server prints as the
    token of its administrator is written to the file `token`.
    """

    def __init__(self) -> None:
        self.port = self._lines = 0
        self.typed: list[object] = []
        """Lines that are typed only once."""
        self._background: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for process in reversed(self._background):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def run(self, line: str) -> Outcome:
        """The outcome of a line that ends."""
        if not _needs_shell(line):
            return clew(*shlex.split(line)[1:])
        exports = line.startswith("export ")
        ended = subprocess.run(
            ["bash", "-c", f"set -e; {line}" + ("; env -0" if exports else "")],
            env=_with_programs(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        if exports:
            variables = dict(each.split("=", 1) for each in ended.stdout.split("\0") if "=" in each)
            os.environ.update({name: variables[name] for name in re.findall(r"(\w+)=", line) if name in variables})
        return Outcome(ended.returncode, ended.stdout, ended.stderr)

    def start(self, line: str, sign: str) -> Outcome:
        """Start a line that does not end, and wait for a sign of life: a text that it prints, or a file it makes."""
        log = Path(f"background-{len(self._background)}.log")
        with log.open("wb") as stream:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {line}"],
                env=_with_programs(),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )
        self._background.append(process)
        for _ in range(600):
            if sign in log.read_text() or Path(sign).exists():
                break
            if process.poll() is not None:
                return Outcome(process.returncode or 1, log.read_text(), f"it ended before '{sign}'")
            time.sleep(0.1)
        else:
            return Outcome(1, log.read_text(), f"no '{sign}'")
        for token in re.findall(r"\bclew_[\w-]+", log.read_text())[:1]:
            Path("token").write_text(f"{token}\n")
        return Outcome(0, log.read_text(), "")

    def filled(self, line: str) -> str:
        """The line with a port, a number and the working folder in the place of their names."""
        if "{new port}" in line:
            self.port = free_port()
        self._lines += 1
        values = {"{new port}": self.port, "{port}": self.port, "{unique}": self._lines, "{here}": Path.cwd()}
        for name, value in values.items():
            line = line.replace(name, str(value))
        return line


def _with_programs() -> dict[str, str]:
    """The environment with the programs of this Python."""
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def failure(line: str, outcome: Outcome) -> str:
    """What is wrong with the outcome of a line: a code other than 0, or a warning; empty if it is right."""
    quiet = not outcome.err or any(note in outcome.err for note in NOTES)
    if outcome.code == 0 and (quiet or _needs_shell(line)):
        return ""
    return f"{line}\n  exit code {outcome.code}\n  {outcome.out[-600:]}\n  {outcome.err[-1500:]}"
