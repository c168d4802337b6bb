"""Why a process failed, from its log."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from clew.core.failure_message import failure_message


def log_of(tmp_path: Path, text: str) -> Path:
    """The log of a real Python process that runs a script."""
    code = tmp_path / "code"
    code.mkdir(exist_ok=True)
    (code / "train.py").write_text(text)
    log = tmp_path / "log.txt"
    with log.open("w") as stream:
        subprocess.run([sys.executable, code / "train.py"], stdout=stream, stderr=stream, check=False)
    return log


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\nraise ValueError('no beam')\n", "train.py:2: ValueError: no beam"),
        ("import json\njson.loads('{')\n", "train.py:2: json.decoder.JSONDecodeError: Expecting property name"),
        ("try:\n    1 / 0\nexcept Exception as e:\n    raise KeyError('b') from e\n", "train.py:4: KeyError: 'b'"),
        ("def f(:\n", "train.py:1: SyntaxError"),
        ("raise ValueError('two\\nlines')\n", "train.py:1: ValueError: two"),
        ("raise SystemExit('wrong input')\n", "wrong input"),
        ("print('clew: a.py:3: ValueError: said before')\nraise SystemExit(2)\n", "a.py:3: ValueError: said before"),
        ("import traceback\ntry:\n    1 / 0\nexcept Exception:\n    traceback.print_exc()\n"
         "for _ in range(30): print('fine')\nraise SystemExit('full')\n", "full"),
    ],
)  # fmt: skip
def test_the_error_of_a_process_is_in_its_log(text: str, message: str, tmp_path: Path) -> None:
    assert failure_message(log_of(tmp_path, text), tmp_path / "code").startswith(message)


def test_of_several_ranks_the_first_error_counts(tmp_path: Path) -> None:
    first = log_of(tmp_path, "raise ValueError('no beam')\n").read_text()
    log = log_of(tmp_path, "\n\nraise RuntimeError('Connection closed by peer')\n")
    log.write_text(first + log.read_text())
    assert failure_message(log, tmp_path / "code", first=True) == "train.py:1: ValueError: no beam"
    assert failure_message(log, tmp_path / "code").startswith("train.py:3: RuntimeError")
    both = [line for line in first.splitlines() for _ in range(2)]  # two ranks that wrote at the same time
    log.write_text("\n".join([*both, "srun: error: n1: task 0: Exited with exit code 1"]))
    assert failure_message(log, tmp_path / "code", first=True) == "train.py:1: ValueError: no beam"


def test_a_log_without_lines_has_a_default(tmp_path: Path) -> None:
    assert failure_message(tmp_path / "none.txt", tmp_path) == "it ended without a message"
