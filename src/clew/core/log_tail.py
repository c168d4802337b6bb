"""The last lines of a log file or of the output of a command: what a process printed before it ended."""

from __future__ import annotations

from pathlib import Path

NO_MESSAGE = "it ended without a message"
"""Reported for a process that printed nothing."""
_PREFIX = "clew:"
_ADVICE = "Run it again with --debug"
"""How the line begins that the command line prints after an error: it does not say what happened."""


def last_line(text: str, default: str = "it printed nothing") -> str:
    """Return the last line of a text that is not empty, without spaces around it.

    Example:
        >>> last_line("one\\ntwo \\n\\n")
        'two'
        >>> last_line("")
        'it printed nothing'
    """
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else default


def log_lines(*logs: Path) -> list[str]:
    """Return the lines of some log files that are not empty, without spaces around them.

    A log file that does not exist has no lines. The advice that clew prints after an error is left out.
    """
    texts = [log.read_text(errors="replace") for log in logs if log.exists()]
    lines = [line.strip() for text in texts for line in text.splitlines()]
    return [line for line in lines if line and not line.startswith(_ADVICE)]


def last_message(*logs: Path, errors_first: bool = False, default: str = NO_MESSAGE) -> str:
    """Return the last line of some log files: in most cases the reason why a process ended.

    Args:
        *logs: The log files, the most important one last.
        errors_first: Take the last line that clew itself printed (`clew: ...`), if there is one.
        default: Returned if there is no line.

    Returns:
        The line without the prefix `clew:`.
    """
    lines = log_lines(*logs)
    if errors_first:
        lines = [line for line in lines if line.startswith(_PREFIX)] or lines
    return without_prefix(lines[-1]) if lines else default


def without_prefix(line: str) -> str:
    """Return a line without the prefix `clew:` that the command line puts before its errors."""
    return line.removeprefix(_PREFIX).strip()
