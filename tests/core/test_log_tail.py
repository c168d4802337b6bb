"""The last lines of a log."""

from __future__ import annotations

from pathlib import Path

from clew.core.log_tail import NO_MESSAGE, last_line, last_message, log_lines


def test_the_last_line_is_the_last_that_is_not_empty() -> None:
    assert last_line("one\n two \n\n") == "two"
    assert last_line("\n", default="none") == "none"


def test_log_lines_leave_out_empty_lines_and_advice(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_bytes(b"one\n\n  two \xff\nRun it again with --debug for more\n")
    assert log_lines(tmp_path / "missing.txt", log) == ["one", "two �"]


def test_the_last_message_has_no_prefix(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text("clew: no such file\nanother line\nRun it again with --debug\n")
    assert last_message(log) == "another line"
    assert last_message(log, errors_first=True) == "no such file"


def test_a_process_that_printed_nothing_has_a_default_message(tmp_path: Path) -> None:
    assert last_message(tmp_path / "missing.txt") == NO_MESSAGE
    assert last_message(tmp_path / "missing.txt", default="") == ""
