"""The options of `clew bench particleflow` and `clew bench node`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clew.cli.bench.values import Json, whole_numbers
from clew.cli.options import Settings

if TYPE_CHECKING:
    from clew.bench.workload.config import WorkloadConfig

Precision = Annotated[str, typer.Option(help="float32, bf16 or fp16.")]
Recipe = Annotated[str, typer.Option(hidden=True, help="Another recipe, for tests.")]


@dataclass(frozen=True, kw_only=True)
class ParticleFlowOptions:
    """All options of `clew bench particleflow`."""

    output: Annotated[
        Path | None, typer.Option(help="Folder for summary, report and runs (default: the next free one in bench/).")
    ] = None
    events: Annotated[int, typer.Option(min=1, help="Training events; a tenth more are for validation.")] = 32
    epochs: Annotated[int, typer.Option(min=1, help="Epochs; the first one does not count for the speed.")] = 2
    batch_size: Annotated[int, typer.Option(min=1, help="Batch size per device.")] = 4
    gpus: Annotated[
        int | None, typer.Option(min=0, help="Devices per copy; 0: processors (default: one if there is one).")
    ] = None
    copies: Annotated[int, typer.Option(min=1, help="Copies at the same time, each on its own cores.")] = 1
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads per copy (default: the cores divided by the copies).")
    ] = None
    precision: Precision = "float32"
    seed: Annotated[int, typer.Option(help="Seed of events and weights.")] = 0
    seeds: Annotated[int, typer.Option(min=1, help="Trainings with different seeds, to measure the spread.")] = 1
    target: Annotated[float | None, typer.Option(help="Accuracy up to which the time is measured.")] = None
    deterministic: Annotated[
        bool,
        typer.Option("--deterministic", help="Reproducible algorithms; compares outputs between threads or devices."),
    ] = False
    inference: Annotated[bool, typer.Option("--inference", help="Measure inference as well.")] = False
    batch_scan: Annotated[str, typer.Option(help="More batch sizes, separated by commas: 1,2,4,8.")] = ""
    data: Annotated[
        list[str] | None,
        typer.Option(metavar="FILES", help="Files to read events from, instead of synthetic ones. Repeatable."),
    ] = None
    fixed_events: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Use the first events of this folder (`clew bench events`).")
    ] = None
    settings: Settings = None
    recipe: Recipe = "particleflow"
    json: Json = False

    def config(self) -> WorkloadConfig:
        """The settings of the workload."""
        from clew.bench.workload.config import WorkloadConfig
        from clew.core.config import Document, validate

        names = ("recipe", "events", "epochs", "batch_size", "gpus", "copies", "threads", "precision", "seed", "seeds")
        options = {
            **{name: getattr(self, name) for name in (*names, "target", "deterministic", "inference")},
            "name": Path(self.recipe).stem,
            "batch_scan": whole_numbers(self.batch_scan, "--batch-scan"),
            "data": list(self.data or ()),
            "fixed_events": None if self.fixed_events is None else str(self.fixed_events),
            "settings": list(self.settings or ()),
        }
        places: dict[tuple[str, ...], str] = {(name,): f"--{name.replace('_', '-')} {options[name]}" for name in names}
        return validate(WorkloadConfig, Document(options, places, "clew bench particleflow"))


@dataclass(frozen=True, kw_only=True)
class NodeOptions:
    """All options of `clew bench node`."""

    output: Annotated[Path, typer.Option(help="Folder for node.json and the runs.")] = Path("node")
    time: Annotated[str, typer.Option(help="Approximate duration of the scan, for example 90s or 2m.")] = "2m"
    price_per_hour: Annotated[
        float | None, typer.Option(min=0.0, help="Price of this node, for the cost of a million events.")
    ] = None
    gpus: Annotated[int | None, typer.Option(min=0, help="0: processors only.")] = None
    events: Annotated[int, typer.Option(min=1, help="Synthetic events to train on.")] = 32
    settings: Settings = None
    recipe: Recipe = "particleflow"
    json: Json = False

    def config(self) -> WorkloadConfig:
        """The settings of the workload."""
        from clew.bench.workload.config import WorkloadConfig
        from clew.core.config import Document, validate

        options = {name: getattr(self, name) for name in ("recipe", "events", "gpus")}
        document = Document({**options, "settings": list(self.settings or ())}, {}, "clew bench node")
        return validate(WorkloadConfig, document)
