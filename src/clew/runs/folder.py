"""The run folder. This object owns every file name in it."""

from __future__ import annotations

import json
import socket
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clew.core.config import Document, read_document, to_yaml
from clew.core.files import write_text
from clew.core.process import is_running
from clew.errors import RunError
from clew.runs import records
from clew.runs.records import Record, Writer

_CLOCKS = 2.0
"""Seconds by which the clocks of hosts may differ."""
_STEPS = ("step", "validation", "checkpoint")
STATES = ("created", "running", "finished", "stopped", "failed", "interrupted")
"""What `Run.state` may say."""


@dataclass(frozen=True)
class Run:
    """One training and the folder that records it."""

    path: Path
    recipe: Any = field(default=None, compare=False, repr=False)
    """What it was trained by, where that happened in this very process; neither saved nor sent elsewhere."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path,)

    @classmethod
    def create(cls, path: Path, *, config: Mapping[str, Any], environment: Mapping[str, Any]) -> Run:
        """Claim a folder that does not exist yet and write down what is about to happen.

        Raises:
            RunError: the folder is taken.
        """
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            raise RunError(f"{path} exists already; name another folder with --output, or remove it") from None
        except OSError as error:
            raise RunError(f"{path}: cannot be made ({error.strerror})") from error
        run = cls(path)
        for folder in (run.records_folder, run.checkpoints, run.plots):
            folder.mkdir()
        write_text(run.environment_file, json.dumps(dict(environment), indent=2) + "\n")
        write_text(run.config_file, to_yaml(config))
        return run

    @classmethod
    def open(cls, path: Path | str) -> Run:
        """A run that was created before.

        Raises:
            RunError: it is no run folder, or one whose creation was cut short.
        """
        run = cls(Path(path))
        if not run.path.is_dir():
            raise RunError(f"{path}: no such run; `clew runs list` shows those there are")
        if not run.config_file.is_file() or not run.environment_file.is_file():
            raise RunError(f"{path}: not a whole run folder (no config.yaml or environment.json in it)")
        return run

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self.path.resolve().name

    @property
    def config_file(self) -> Path:
        """The resolved settings; written last on creation, so its presence means the folder is whole."""
        return self.path / "config.yaml"

    @property
    def environment_file(self) -> Path:
        """Machine, versions, command."""
        return self.path / "environment.json"

    @property
    def dataset_file(self) -> Path:
        """A copy of the dataset's manifest."""
        return self.path / "dataset.json"

    @property
    def records_folder(self) -> Path:
        """One `.jsonl` a stream."""
        return self.path / "records"

    @property
    def meeting_file(self) -> Path:
        """Where the ranks of this run find each other."""
        return self.path / ".meeting"

    @property
    def token_file(self) -> Path:
        """What workers must know to join, where they may: for the owner alone."""
        return self.path / "token"

    @property
    def address_file(self) -> Path:
        """Where they reach the master."""
        return self.path / "address"

    @property
    def checkpoints(self) -> Path:
        """Weights."""
        return self.path / "checkpoints"

    @property
    def plots(self) -> Path:
        """Figures as plotly JSON, a folder an evaluation."""
        return self.path / "plots"

    @property
    def replicas_folder(self) -> Path:
        """The runs of an ensemble, where it is one."""
        return self.path / "replicas"

    def replicas(self) -> list[Run]:
        """The members of an ensemble, in order; none where it is a run like any other."""
        return list_runs(self.replicas_folder)

    @property
    def trace_folder(self) -> Path:
        """One `.trace` a rank: what it did when."""
        return self.path / "trace"

    @property
    def push_file(self) -> Path:
        """How much of it a server has got."""
        return self.path / "push.json"

    @property
    def report_file(self) -> Path:
        """The page for people."""
        return self.path / "report.html"

    def state_file(self, step: int) -> Path:
        """Everything needed to go on from a step."""
        return self.checkpoints / f"step-{step:09d}.pt"

    def states(self) -> list[Path]:
        """The states there are, oldest first."""
        return sorted(self.checkpoints.glob("step-*.pt"))

    def checkpoint(self, name: str) -> Path:
        """The weights called `name` ('last' or 'best')."""
        return self.checkpoints / f"{name}.safetensors"

    def bad_batch(self, step: int, rank: int) -> Path:
        """A rank's samples of a step whose loss was not finite."""
        return self.path / f"bad-batch-step-{step}-rank-{rank}.h5"

    @property
    def job_folder(self) -> Path:
        """Beside the run: log and exit code of the job that does it, where a launcher started one."""
        return self.path.parent / "jobs" / self.path.name

    def settle(self, **train: Any) -> None:
        """Write down settings of training that were found only when the run began."""
        data = self.config().data
        write_text(self.config_file, to_yaml({**data, "train": {**data["train"], **train}}))

    def config(self) -> Document:
        """The settings, as `--config` would read them."""
        return read_document(self.config_file)

    def environment(self) -> dict[str, Any]:
        """What `clew.runs.environment.capture` saw."""
        return dict(json.loads(self.environment_file.read_text()))

    def writer(self, stream: str) -> Writer:
        """The one writer of a stream."""
        return Writer(self.records_folder / f"{stream}.jsonl")

    def streams(self, of: str = "rank") -> list[str]:
        """The streams there are of ranks (`rank`), or of what they use (`usage`), in order of number."""
        found = [path.stem for path in self.records_folder.glob(f"{of}-*.jsonl")]
        return sorted(found, key=lambda name: int(name.rpartition("-")[2]))

    def records(self, stream: str = "rank-0", kind: str | None = None) -> Iterator[Record]:
        """The records of a stream, oldest first; none if it was never begun."""
        path = self.records_folder / f"{stream}.jsonl"
        if path.exists():
            yield from (record for record in records.read(path) if kind in (None, record["kind"]))

    def records_back(self, stream: str = "rank-0", kinds: Collection[str] | None = None) -> Iterator[Record]:
        """The same, of some kinds, newest first: cheap where the newest are all that is needed."""
        path = self.records_folder / f"{stream}.jsonl"
        if path.exists():
            yield from records.read_back(path, kinds)

    def history(self, stream: str = "rank-0") -> list[Record]:
        """The records of a stream as if it had never been interrupted: what a resumed run did again stands once."""
        kept: list[Record] = []
        for record in self.records(stream):
            if record["kind"] == "resume":
                kept = [each for each in kept if each["kind"] not in _STEPS or each["step"] <= record["step"]]
            kept.append(record)
        return kept

    def last(self, kind: str, stream: str = "rank-0") -> Record | None:
        """The newest record of a kind."""
        return next(self.records_back(stream, (kind,)), None)

    def evaluations(self) -> dict[str, Record]:
        """The newest evaluation under each name."""
        return {record["name"]: record for record in self.records("evaluate", "evaluation")}

    def plot(self) -> Any:
        """The curves of the training as one plotly figure, which a notebook shows: losses, then every metric."""
        from clew.runs.training_figures import drawn

        return drawn(self)

    @property
    def state(self) -> str:
        """One of `STATES`; `interrupted` is one that ended without a word, or by Ctrl-C."""
        return self.condition(next(self.records_back(self.lead, ("start", "end")), None))[0]

    def end(self) -> Record | None:
        """How it ended since it was last begun: the last word of rank 0, or else of the rank that failed first."""
        return self.condition(next(self.records_back(self.lead, ("start", "end")), None))[1]

    def condition(self, newest: Record | None) -> tuple[str, Record | None]:
        """State and end, for those who have the newest record of a start or an end of `lead` already."""
        if newest is None:
            return "created", None
        if newest["kind"] == "end":
            return str(newest["status"]), newest
        if _alive(newest):
            return "running", None
        failures = self.failures()
        return ("failed", failures[0]) if failures else ("interrupted", None)

    @property
    def lead(self) -> str:
        """The stream that tells the run's story: rank 0's, or, should that file be lost, the first there is."""
        if (self.records_folder / "rank-0.jsonl").exists():
            return "rank-0"
        return next(iter(self.streams()), "rank-0")

    def missing_ranks(self) -> list[int]:
        """Ranks that were to train, by what the others say, and have left no stream."""
        starts = [self.last("start", stream) for stream in self.streams()]
        planned = max((start["ranks"] for start in starts if start is not None), default=0)
        return [rank for rank in range(planned) if f"rank-{rank}" not in self.streams()]

    def failures(self) -> list[Record]:
        """How ranks failed since the run was last begun, the first to do so first: it may be the others' cause.

        Each is the rank's record of its end, with its number as `rank`.
        """
        start = self.last("start", self.lead)
        if start is None:
            return []
        found = []
        for stream in self.streams():
            for record in self.records_back(stream, ("start", "end")):
                if record["kind"] == "start" or record["time"] < start["time"] - _CLOCKS:
                    break
                found += [{**record, "rank": int(stream[5:])}] if record["status"] == "failed" else []
        return sorted(found, key=lambda each: float(each["time"]))


def list_runs(root: Path) -> list[Run]:
    """The whole run folders directly under `root`, by name."""
    if not root.is_dir():
        return []
    return [Run(path.parent) for path in sorted(root.glob("*/config.yaml")) if (path.parent / "records").is_dir()]


def next_name(root: Path, prefix: str) -> Path:
    """The first free `prefix-NNN` under `root`."""
    taken = {path.name for path in root.glob(f"{prefix}-*")} if root.is_dir() else set()
    number = next(n for n in range(1, len(taken) + 2) if f"{prefix}-{n:03d}" not in taken)
    return root / f"{prefix}-{number:03d}"


def follow(run: Run, stream: str, *, until: Any, after: int = -1, pause: float = 0.2) -> Iterator[Record]:
    """Records behind `after` as they come in, until the `until` event (threading) is set and all were read."""
    path, seen = run.records_folder / f"{stream}.jsonl", after
    while True:
        finished = until.is_set()
        for record in records.read(path, after=seen) if path.exists() else ():
            seen = record["seq"]
            yield record
        if finished:
            return
        until.wait(pause)


def _alive(start: Record) -> bool:
    """Whether the process that wrote a start record still runs; one on another host is taken to."""
    return start["host"] != socket.gethostname() or is_running(start["pid"], created_before=start["time"])
