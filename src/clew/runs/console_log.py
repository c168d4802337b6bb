"""What the processes of a run print, also written to the run folder, while they print it.

Every line that Python code prints is passed on as before, and becomes a record of kind `output` in the stream `console`
(`console-N` for rank N). Records are sent to a server as they are written, so its page of the run shows them live.
Output of C libraries that bypasses `sys.stdout` and `sys.stderr` is not seen; the log of a job has it.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import traceback
from collections import deque
from collections.abc import Iterator
from typing import Any

from clew.core.printed_lines import PrintedLines
from clew.errors import ClewError
from clew.runs.folder import Run
from clew.runs.records import Record, RecordWriter, read

CONSOLE = "console"
"""The stream of the process that started the run; other ranks have `console-N`."""
CONSOLE_STREAM = re.compile(r"console(?:-(\d+))?")
"""The names of streams that hold printed lines, with the rank."""
_LIMIT = 1_000_000
"""Characters that are recorded of one process from its start. After that only the last lines are, at the end."""
_LARGEST_FILE = 10_000_000
"""Bytes of a stream, over all starts of a run."""
_LAST_LINES = 200
"""Lines from before the run exists, and from after the limit, that are remembered."""


def console_stream(rank: int) -> str:
    """Return the name of the stream with the lines that a rank prints."""
    return CONSOLE if rank == 0 else f"{CONSOLE}-{rank}"


class _RecordedStream:
    """A text stream that also gives what is written to it to a `_Console`. Everything else is that of the stream."""

    def __init__(self, stream: Any, console: _Console) -> None:
        self._stream, self._console, self._lines = stream, console, PrintedLines()
        console.sources.append(self._lines)

    def write(self, text: str) -> int:
        """Write text to the stream, then record its complete lines."""
        written: int = self._stream.write(text)
        self._console.add(self._lines, text)
        return written

    def writelines(self, lines: Any) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Console:
    """The printed lines of this process: remembered until the run exists, then recorded."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._lock = threading.RLock()
        self.sources: list[PrintedLines] = []
        """The lines of each stream."""
        self._pieces: deque[tuple[PrintedLines, str]] = deque()
        """Texts as they were written, which are not processed yet."""
        self._waiting: deque[str] = deque(maxlen=_LAST_LINES)
        """Lines that are not recorded yet: the run does not exist, or the limit is reached."""
        self._left_out = 0
        """Lines after the limit, of which `_waiting` has the last."""
        self._writer: RecordWriter | None = None
        self._characters = 0
        self._is_busy = False

    def add(self, source: PrintedLines, text: str) -> None:
        """Record the lines that a text completes. A forked process records nothing: it has no stream of its own."""
        if os.getpid() != self._process:
            return
        with self._lock:
            self._pieces.append((source, text))
            if not self._is_busy:  # else the text is from a signal handler: what it interrupted continues with it
                with self._exclusive():
                    while self._pieces:
                        source, text = self._pieces.popleft()
                        if lines := source.feed(text):
                            self._add_lines("\n".join(lines))

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Let signal handlers only queue what they print. A disk that is full ends the recording, not the print."""
        self._is_busy = True
        try:
            yield
        except OSError:
            writer, self._writer = self._writer, None
            if writer is not None:
                writer.close()
        finally:
            self._is_busy = False

    def _add_lines(self, text: str) -> None:
        self._waiting.append(text)
        while self._writer is not None and self._waiting and self._characters < _LIMIT:
            self._record(self._writer, self._waiting.popleft())
        self._left_out += self._writer is not None and bool(self._waiting)

    def _record(self, writer: RecordWriter, text: str) -> None:
        self._characters += len(text)
        writer.write("output", message=text)

    def attach(self, run: Run, stream: str) -> None:
        """Record in a stream of a run from now on, beginning with what was printed before."""
        path = run.records_folder / f"{stream}.jsonl"
        if path.exists() and path.stat().st_size > _LARGEST_FILE:
            return
        with self._lock, self._exclusive():
            self._writer, self._characters, self._left_out = run.writer(stream), 0, 0
            waiting, self._waiting = self._waiting, deque(maxlen=_LAST_LINES)
            for text in waiting:
                self._add_lines(text)

    def detach(self) -> None:
        """Record the last lines, and end."""
        with self._lock, self._exclusive():
            for line in [line for source in self.sources for line in source.flush()]:
                self._add_lines(line)
            writer, self._writer = self._writer, None
            if writer is None:
                return
            with writer:
                if (missing := self._left_out - len(self._waiting)) > 0:
                    self._record(writer, f"... {missing:,} more outputs are not recorded ...")
                while self._waiting:
                    self._record(writer, self._waiting.popleft())


_current: _Console | None = None


@contextlib.contextmanager
def captured_console() -> Iterator[None]:
    """Remember what this process prints while the block runs. Inside another such block it does nothing."""
    global _current
    if _current is not None and _current._process == os.getpid():
        yield
        return
    _current = console = _Console()
    before = sys.stdout, sys.stderr
    streams = [None if stream is None else _RecordedStream(stream, console) for stream in before]
    sys.stdout, sys.stderr = streams
    try:
        yield
    finally:
        _current = None
        if sys.stdout is streams[0]:
            sys.stdout = before[0]
        if sys.stderr is streams[1]:
            sys.stderr = before[1]


@contextlib.contextmanager
def recorded_console(run: Run, stream: str = CONSOLE) -> Iterator[None]:
    """Record what this process prints in a stream of the run while the block runs, and the error that ends it.

    What `captured_console` has remembered is recorded first.

    Args:
        run: A run whose folder exists.
        stream: A name of `console_stream`.
    """
    with captured_console():
        assert _current is not None
        console = _current
        console.attach(run, stream)
        try:
            yield
        except BaseException as error:
            console.add(PrintedLines(), error_text(error))
            raise
        finally:
            console.detach()


class ConsoleReader:
    """Reads what the processes of a run printed, part by part.

    Args:
        run: The run.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._positions: dict[str, int] = {}

    def _streams(self) -> dict[str, str | None]:
        """The streams of printed lines, with their ranks."""
        paths = sorted(self._run.records_folder.glob(f"{CONSOLE}*.jsonl"))
        names = [path.stem for path in paths if path.stat().st_size]
        matches = {name: CONSOLE_STREAM.fullmatch(name) for name in names}
        return {name: match[1] for name, match in matches.items() if match is not None}

    def exists(self) -> bool:
        """Return whether anything was recorded."""
        return bool(self._streams())

    def new_text(self) -> str:
        """Return what was printed since the last call, in the order of time. Lines of ranks begin with the rank."""
        parts: list[tuple[float, str]] = []
        for name, rank in self._streams().items():
            for record in read(self._run.records_folder / f"{name}.jsonl", after=self._positions.get(name, -1)):
                self._positions[name] = record["seq"]
                parts.append((record["time"], output_text(record, rank)))
        return "".join(text for _, text in sorted(parts, key=lambda part: part[0]))


def output_text(record: Record, rank: str | None) -> str:
    """Return the lines of an `output` record, each with the rank that printed it if it is a rank's."""
    prefix = "" if rank is None else f"[rank {rank}] "
    return "".join(f"{prefix}{line}\n" for line in str(record.get("message")).splitlines() or [""])


def error_text(error: BaseException) -> str:
    """Return what a log shows of an error: one line for those that clew explains, else the whole traceback."""
    if isinstance(error, ClewError):
        return f"clew: {error}\n"
    if isinstance(error, KeyboardInterrupt):
        return "interrupted (Ctrl-C)\n"
    return "".join(traceback.format_exception(error))
