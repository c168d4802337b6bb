"""The run folder. `Run` is the only place that knows the names of the files in it."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clew.core.config import Document, read_document, to_yaml
from clew.core.disk_errors import disk_reason
from clew.core.files import write_text
from clew.core.format_version import check_format_version
from clew.core.html_table import html_table, shorten
from clew.core.process import is_running
from clew.errors import RunError
from clew.runs import records
from clew.runs.records import Record, RecordWriter

_CLOCK_TOLERANCE = 2.0
"""Seconds by which the clocks of two hosts may differ."""
FORMAT = 1
"""Version of run folders. It changes when an older clew could not read a new folder."""
RUNS = Path("runs")
"""The folder in which runs are created by default."""
STATES = ("created", "running", "finished", "stopped", "failed", "interrupted")
"""The values of `Run.state`."""


@dataclass(frozen=True)
class Run:
    """One training, recorded in a folder.

    Args:
        path: The folder. Use `Run.open` for an existing one.
        recipe: The recipe object, if the run was trained in this process.

    Example:
        >>> run = clew.Run.open("runs/tagger-001")  # doctest: +SKIP
        >>> run.state  # doctest: +SKIP
        'finished'
    """

    path: Path
    recipe: Any = field(default=None, compare=False, repr=False)
    """The recipe object, if the run was trained in this process. It is neither saved nor pickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path,)

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path))  # `clew.Run("runs/first")` works too

    def __repr__(self) -> str:
        facts = [f"{name} {value}" for name, value in self._facts() if name not in ("state", "message")]
        return f"Run({self.path}: {shorten([dict(self._facts())['state'], *facts])})"

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        from clew.runs.notebook_view import TrainingCurves

        known = self.config_file.is_file()
        return html_table(f"Run {self.path}", self._facts(), above=TrainingCurves.of_run(self).html() if known else "")

    def _facts(self) -> list[tuple[str, str]]:
        """State, position and metrics of the run, as names and values."""
        from clew.runs.listing import list_run

        if not self.path.is_dir():
            return [("state", "no such folder")]
        facts = list_run(self)
        position = [("epoch", f"{facts.epochs_done}/{facts.epochs}")] if facts.epochs else []
        metrics = [(name, f"{value:.4g}") for name, value in facts.metrics.items() if value is not None]
        return [("state", facts.state), *position, *metrics, *([("message", facts.message)] if facts.message else [])]

    @classmethod
    def create(cls, path: Path, *, config: Mapping[str, Any], environment: Mapping[str, Any]) -> Run:
        """Create a new folder with the settings and the environment of a run. A run that never trained is replaced.

        Raises:
            RunError: The folder exists or cannot be created.
        """
        from clew.runs.untrained import remove_untrained

        remove_untrained(path)
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            raise RunError(f"{path} exists already; name another folder with --output, or remove it") from None
        except OSError as error:
            raise RunError(f"{path}: cannot be made: {disk_reason(error) or error.strerror}") from error
        run = cls(path)
        for folder in (run.records_folder, run.checkpoints, run.plots):
            folder.mkdir()
        write_text(run.environment_file, json.dumps({"format": FORMAT, **environment}, indent=2) + "\n")
        write_text(run.config_file, to_yaml(config))
        return run

    @classmethod
    def open(cls, path: Path | str) -> Run:
        """Open an existing run, by its folder or by its name in `runs/`.

        Raises:
            RunError: The folder is not a run, its creation was interrupted, or a newer clew wrote it.
        """
        run = cls(find_run_path(path))
        if not run.path.is_dir():
            raise RunError(f"{path}: no such run; `clew runs list` shows all runs")
        if not run.config_file.is_file() or not run.environment_file.is_file():
            raise RunError(f"{path}: not a complete run folder (config.yaml or environment.json is missing)")
        with contextlib.suppress(ValueError):  # damaged: what needs it says so
            check_format_version(run.path, run._environment().get("format"), FORMAT, RunError)
        return run

    @property
    def name(self) -> str:
        """The name of the folder."""
        return self.path.resolve().name

    @property
    def config_file(self) -> Path:
        """The resolved settings. Written last on creation, so its presence means that the folder is complete."""
        return self.path / "config.yaml"

    @property
    def environment_file(self) -> Path:
        """Machine, versions and command."""
        return self.path / "environment.json"

    @property
    def dataset_file(self) -> Path:
        """A copy of the dataset's manifest."""
        return self.path / "dataset.json"

    @property
    def code_folder(self) -> Path:
        """The source code of the recipe and the model, as they were when the training started."""
        return self.path / "code"

    @property
    def records_folder(self) -> Path:
        """One `.jsonl` file per stream."""
        return self.path / "records"

    @property
    def meeting_file(self) -> Path:
        """Where the ranks of this run find each other."""
        return self.path / ".meeting"

    @property
    def token_file(self) -> Path:
        """The token that workers need to join; readable by the owner only."""
        return self.path / "token"

    @property
    def address_file(self) -> Path:
        """The address of the master, for workers that join."""
        return self.path / "address"

    @property
    def checkpoints(self) -> Path:
        """Weights and resumable states."""
        return self.path / "checkpoints"

    @property
    def plots(self) -> Path:
        """Figures as plotly JSON, one folder per evaluation."""
        return self.path / "plots"

    @property
    def artefacts(self) -> Path:
        """Files that a script saved with `clew.artefact`."""
        return self.path / "artefacts"

    @property
    def replicas_folder(self) -> Path:
        """The runs of an ensemble, if this run is one."""
        return self.path / "replicas"

    def replicas(self) -> list[Run]:
        """The members of an ensemble in order; empty if this run is not an ensemble."""
        return list_runs(self.replicas_folder)

    @property
    def trace_folder(self) -> Path:
        """One `.trace` file per rank with its timeline."""
        return self.path / "trace"

    @property
    def push_file(self) -> Path:
        """How much of the run was sent to a server."""
        return self.path / "push.json"

    @property
    def report_file(self) -> Path:
        """The report as an HTML page."""
        return self.path / "report.html"

    def state_file(self, step: int) -> Path:
        """The checkpoint from which the run can be resumed at a step."""
        return self.checkpoints / f"step-{step:09d}.pt"

    def states(self) -> list[Path]:
        """The existing checkpoints to resume from, oldest first."""
        return sorted(self.checkpoints.glob("step-*.pt"))

    def checkpoint(self, name: str) -> Path:
        """The weights called `name` ('last' or 'best')."""
        return self.checkpoints / f"{name}.safetensors"

    def bad_batch(self, step: int, rank: int) -> Path:
        """The samples of one rank in a step whose loss was not finite."""
        return self.path / f"bad-batch-step-{step}-rank-{rank}.h5"

    @property
    def job_folder(self) -> Path:
        """Folder with log and exit code of the job, if a launcher started this run."""
        return self.path.parent / "jobs" / self.path.name

    def save_settings(self, **train: Any) -> None:
        """Save training settings that were determined only after the run had started."""
        data = self.config().data
        write_text(self.config_file, to_yaml({**data, "train": {**data["train"], **train}}))

    def config(self) -> Document:
        """The resolved settings."""
        return read_document(self.config_file)

    def environment(self) -> dict[str, Any]:
        """The environment, as `clew.runs.environment.capture` recorded it."""
        return {name: value for name, value in self._environment().items() if name != "format"}

    def _environment(self) -> dict[str, Any]:
        return dict(json.loads(self.environment_file.read_text()))

    def writer(self, stream: str) -> RecordWriter:
        """A writer for a stream. There must be only one per stream."""
        return RecordWriter(self.records_folder / f"{stream}.jsonl")

    def streams(self, kind: str = "rank") -> list[str]:
        """The names of the streams of ranks (`rank`) or of their resource usage (`usage`), sorted by rank."""
        names = [path.stem for path in self.records_folder.glob(f"{kind}-*.jsonl")]
        return sorted(names, key=lambda name: int(name.rpartition("-")[2]))

    def records(self, stream: str = "rank-0", kind: str | None = None) -> Iterator[Record]:
        """The records of a stream, oldest first; empty if the stream does not exist."""
        path = self.records_folder / f"{stream}.jsonl"
        if path.exists():
            yield from (record for record in records.read(path) if kind in (None, record["kind"]))

    def reversed_records(self, stream: str = "rank-0", kinds: Collection[str] | None = None) -> Iterator[Record]:
        """Like `records`, newest first. Reads only the part of the file that the caller consumes."""
        path = self.records_folder / f"{stream}.jsonl"
        if path.exists():
            yield from records.read_reversed(path, kinds)

    def history(self, stream: str = "rank-0") -> list[Record]:
        """The records of a stream without those of steps that a resumed run repeated."""
        return records.current_records(self.records(stream))

    def last(self, kind: str, stream: str = "rank-0") -> Record | None:
        """The newest record of a kind, or None."""
        return next(self.reversed_records(stream, (kind,)), None)

    def evaluations(self) -> dict[str, Record]:
        """The newest evaluation by name."""
        return {record["name"]: record for record in self.records("evaluate", "evaluation")}

    def plot(self) -> Any:
        """Losses and validation metrics as one plotly figure, for a notebook."""
        from clew.runs.training_figures import training_plot

        return training_plot(self)

    def draw(self, *, style: str = "") -> Any:
        """Losses and validation metrics as one matplotlib figure, for a notebook or a paper.

        Args:
            style: A style of mplhep: CMS, ATLAS, LHCb2, ALICE. Default: that of matplotlib.

        Raises:
            RunError: No step was recorded yet.
            ConfigError: matplotlib or mplhep is not installed, or there is no such style.
        """
        from clew.runs.drawing import draw_figures
        from clew.runs.training_figures import training_figures

        figures = training_figures(self)
        if not figures:
            raise RunError(f"{self.path}: there is nothing to draw before the first step")
        return draw_figures([figures[name] for name in ("loss", "metrics", "large") if name in figures], style=style)

    @property
    def state(self) -> str:
        """One of `STATES`. `interrupted` means killed without a message, or stopped by Ctrl-C."""
        return self.state_and_end(next(self.reversed_records(self.main_stream, ("start", "end")), None))[0]

    def end(self) -> Record | None:
        """The record of the end since the last start: that of rank 0, else of the first rank that failed."""
        return self.state_and_end(next(self.reversed_records(self.main_stream, ("start", "end")), None))[1]

    def state_and_end(self, newest: Record | None) -> tuple[str, Record | None]:
        """State and end record, given the newest `start` or `end` record of the main stream."""
        if newest is None:
            return "created", None
        if newest["kind"] == "end":
            return str(newest["status"]), newest
        if _is_alive(newest):
            return "running", None
        failures = self.failures()
        return ("failed", failures[0]) if failures else ("interrupted", None)

    @property
    def main_stream(self) -> str:
        """The stream that describes the whole run: that of rank 0, or the first existing one if that is lost."""
        if (self.records_folder / "rank-0.jsonl").exists():
            return "rank-0"
        return next(iter(self.streams()), "rank-0")

    def missing_ranks(self) -> list[int]:
        """Ranks that, according to the others, took part but left no stream."""
        starts = [self.last("start", stream) for stream in self.streams()]
        planned = max((start["ranks"] for start in starts if start is not None), default=0)
        return [rank for rank in range(planned) if f"rank-{rank}" not in self.streams()]

    def failures(self) -> list[Record]:
        """The end records of the ranks that failed since the last start, the earliest first: it may be the cause.

        Each record has the additional field `rank`.
        """
        start = self.last("start", self.main_stream)
        if start is None:
            return []
        failures = []
        for stream in self.streams():
            for record in self.reversed_records(stream, ("start", "end")):
                if record["kind"] == "start" or record["time"] < start["time"] - _CLOCK_TOLERANCE:
                    break
                failures += [{**record, "rank": int(stream[5:])}] if record["status"] == "failed" else []
        return sorted(failures, key=lambda each: float(each["time"]))


def why_no_checkpoint(path: Path) -> str:
    """Return the end of a message about weights that do not exist."""
    if path.stem == "best" and path.with_stem("last").is_file():
        return "no validation chose the best weights: there was none, or its metric was NaN; use the weights 'last'"
    return "did the run finish its first epoch?"


def find_run_path(name: str | Path, root: Path = RUNS) -> Path:
    """Return the folder of a run: the path itself, or the run with this name in `root`.

    Args:
        name: A path, or a name as `clew runs list` prints it.
        root: The folder with runs.
    """
    path = Path(name)
    is_name = path.name == str(name) and not path.exists()
    return root / path if is_name and (root / path / "config.yaml").is_file() else path


def list_runs(root: Path) -> list[Run]:
    """The complete run folders directly in `root`, sorted by name."""
    if not root.is_dir():
        return []
    return [Run(path.parent) for path in sorted(root.glob("*/config.yaml")) if (path.parent / "records").is_dir()]


def next_run_path(root: Path, prefix: str) -> Path:
    """The first unused path `prefix-NNN` in `root`. The folder of a run that never trained counts as unused."""
    from clew.runs.untrained import never_trained

    paths = root.glob(f"{prefix}-*") if root.is_dir() else ()
    used = {path.name for path in paths if not never_trained(Run(path))}
    number = next(n for n in range(1, len(used) + 2) if f"{prefix}-{n:03d}" not in used)
    return root / f"{prefix}-{number:03d}"


def follow(run: Run, stream: str, *, until: Any, after: int = -1, pause: float = 0.2) -> Iterator[Record]:
    """Records with `seq` greater than `after`, as they are written, until the event `until` is set and all are read."""
    path, last_read = run.records_folder / f"{stream}.jsonl", after
    while True:
        finished = until.is_set()
        for record in records.read(path, after=last_read) if path.exists() else ():
            last_read = record["seq"]
            yield record
        if finished:
            return
        until.wait(pause)


def _is_alive(start: Record) -> bool:
    """True if the process that wrote a start record still runs. Processes on other hosts count as running."""
    return start["host"] != socket.gethostname() or is_running(start["pid"], created_before=start["time"])
