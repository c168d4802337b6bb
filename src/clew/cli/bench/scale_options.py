"""The options of `clew bench scale`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from clew.cli.bench.values import Json, choices, whole_numbers
from clew.cli.options import Settings, What, parse_seconds
from clew.errors import ConfigError

if TYPE_CHECKING:
    from clew.bench.scaling.study import ScaleConfig


@dataclass(frozen=True, kw_only=True)
class ScaleOptions:
    """All options of `clew bench scale`."""

    recipe: What
    workers: Annotated[str, typer.Option(help="Numbers of workers, separated by commas.")] = "1,2,4"
    strategy: Annotated[str, typer.Option(help="Strategies, separated by commas (see `clew train`).")] = "allreduce"
    weak: Annotated[
        bool, typer.Option("--weak", help="Weak scaling: the work grows with the workers (default: they share it).")
    ] = False
    dataset: Annotated[str | None, typer.Option(help="A dataset made by `clew prepare`.")] = None
    epochs: Annotated[int, typer.Option(min=1, help="Epochs; the first one does not count for the speed.")] = 3
    batch_size: Annotated[
        int | None,
        typer.Option(
            min=1, help="Batch size of all workers; with --weak of each worker (default: that of the recipe)."
        ),
    ] = None
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads per worker (default: the cores divided by the largest size).")
    ] = None
    repeat: Annotated[int, typer.Option(min=1, help="Trainings per size, with different seeds.")] = 1
    predict: Annotated[
        str, typer.Option(help="Sizes to predict (default: powers of two up to 16 times the largest).")
    ] = ""
    link: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=GB/S[:MICROSECONDS]",
            help="A connection whose effect is expected from the bytes of a step (default: NVLink and networks).",
        ),
    ] = None
    limit: Annotated[str, typer.Option(help="Time limit per training, for example 90s or 10m.")] = "10m"
    on: Annotated[
        str | None, typer.Option(metavar="SITE", help="Run the trainings at this site (`clew site list`).")
    ] = None
    settings: Settings = None
    output: Annotated[Path, typer.Option(help="A folder for the runs, scale.json and scale.html.")] = Path("scaling")
    json: Json = False

    def config(self) -> ScaleConfig:
        """The settings of the study."""
        from clew.bench.scaling.study import ScaleConfig, Strategy
        from clew.core.config import Document, validate

        names = ("recipe", "dataset", "weak", "epochs", "batch_size", "threads", "repeat", "on")
        options = {
            **{name: getattr(self, name) for name in names},
            "workers": whole_numbers(self.workers, "--workers"),
            "strategies": choices(self.strategy, "--strategy", get_args(Strategy)),
            "predict": whole_numbers(self.predict, "--predict"),
            "minutes": parse_seconds(self.limit, "--limit") / 60,
            "settings": list(self.settings or ()),
        }
        if self.link:
            options["links"] = dict(map(_link, self.link))
        return validate(ScaleConfig, Document(options, {}, "clew bench scale"))


def _link(text: str) -> tuple[str, dict[str, float]]:
    """Read `NAME=GB/S[:MICROSECONDS]`."""
    name, _, values = text.partition("=")
    try:
        bandwidth, *latency = map(float, values.split(":"))
    except ValueError as error:
        raise ConfigError(f"--link '{text}': write NAME=GB/S or NAME=GB/S:MICROSECONDS, as 'fast=12.5:10'") from error
    return name, {"gigabytes_per_second": bandwidth, **({"microseconds": latency[0]} if latency else {})}
