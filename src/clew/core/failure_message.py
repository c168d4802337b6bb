"""Why a process failed, from what it printed: the file, line and message of a Python traceback, or the last line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from clew.core.log_tail import last_message, log_lines

_START = "Traceback (most recent call last):"
_FRAME = re.compile(r'\s+File "(?P<file>[^"]+)", line (?P<line>\d+)')
_MAX_LINES_AFTER = 20
"""Lines after the last traceback beyond which it is not the end of the process: a message may have several lines."""


def failure_message(log: Path, code: Path, *, first: bool = False) -> str:
    """Return why a process failed: of a Python traceback the file, the line and the error; else its last line.

    Args:
        log: What the process printed.
        code: The folder of the user's code. Its innermost line is named; if there is none, the innermost of all.
        first: Several processes wrote the log, and the first one that failed made the others fail.

    Returns:
        Such as `train.py:12: ValueError: no beam`.

    Example:
        >>> from pathlib import Path
        >>> trace = '  File "/job/code/a.py", line 3, in <module>\\n    f()\\nKeyError: 1'
        >>> _ = Path("log.txt").write_text(f"Traceback (most recent call last):\\n{trace}")
        >>> failure_message(Path("log.txt"), Path("/job/code"))
        'a.py:3: KeyError: 1'
    """
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    traces = [number for number in range(len(lines)) if _is_start(lines, number)]
    messages = [text for number in (traces if first else traces[-1:]) if (text := _message(lines, number, code))]
    ends_with_it = traces and len(lines) - _error_line(lines, traces[-1]) <= _MAX_LINES_AFTER
    return messages[0] if messages and (first or ends_with_it) and not _is_reported(log) else last_message(log)


def _is_start(lines: Sequence[str], number: int) -> bool:
    """Whether a traceback begins at a line. That of an error in the syntax of a script has no heading."""
    before = lines[number - 1] if number else ""
    headless = _FRAME.match(lines[number]) and not before.startswith((" ", _START))
    return lines[number].startswith(_START) or bool(headless)


def _is_reported(log: Path) -> bool:
    """Whether clew itself printed the error, as its last line."""
    return log_lines(log)[-1:] == [line for line in log_lines(log)[-1:] if line.startswith("clew:")]


def _error_line(lines: Sequence[str], start: int) -> int:
    """The number of the line with the exception, after the indented lines of a traceback."""
    number = start + 1
    while number < len(lines) and (lines[number].startswith(" ") or not lines[number]):
        number += 1
    return number


def _message(lines: Sequence[str], start: int, code: Path) -> str:
    """The place and the exception of a traceback; empty if it is cut off."""
    end = _error_line(lines, start)
    frames = [match for line in lines[start:end] if (match := _FRAME.match(line))]
    if end >= len(lines) or not frames:
        return ""
    user_frames = [frame for frame in frames if Path(frame["file"]).is_relative_to(code)]
    frame = (user_frames or frames)[-1]
    file = Path(frame["file"])
    return f"{file.relative_to(code) if user_frames else file}:{frame['line']}: {lines[end].strip()}"
