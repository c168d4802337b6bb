"""`clew generate`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from clew.cli.options import bold, console, printed_warnings, takes_options
from clew.cli.runs.follow import counting
from clew.errors import ConfigError
from clew.jobs.rank_info import current_rank


@dataclass(frozen=True, kw_only=True)
class GenerateOptions:
    """All options of `clew generate`."""

    run: Annotated[str, typer.Argument(help="Folder of the run, or a file that `clew export` wrote.")]
    events: Annotated[int, typer.Option(min=1, help="Number of events.")]
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write: .h5, .parquet or .root.")]
    energy: Annotated[str | None, typer.Option(metavar="LOW:HIGH", help="Energies of the particles, GeV.")] = None
    theta: Annotated[str | None, typer.Option(metavar="LOW:HIGH", help="Angles to the axis, degrees.")] = None
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random numbers.")] = 0
    workers: Annotated[int, typer.Option(min=1, help="Number of processes.")] = 1
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Events per batch (default: 10,000 on a GPU, 256 on a CPU).")
    ] = None
    weights: Annotated[str, typer.Option(help="Which checkpoint: best or last.")] = "best"
    device: Annotated[str, typer.Option(help="Where to compute: auto, cpu, cuda, cuda:1.")] = "auto"
    replace: Annotated[bool, typer.Option("--replace", help="Replace an existing file.")] = False
    trust: Annotated[
        bool, typer.Option("--trust", help="Run the code of a model that came from elsewhere, now and later.")
    ] = False

    def ranges(self) -> dict[str, tuple[float, float]]:
        """The ranges by name.

        Raises:
            ConfigError: A range is not LOW:HIGH.
        """
        texts = {"energy": self.energy, "theta": self.theta}
        return {name: _range(name, text) for name, text in texts.items() if text is not None}


@takes_options(GenerateOptions)
def generate(options: GenerateOptions) -> None:
    """Generate events with the trained model of a generative recipe.

    Not `clew data generate`, which writes raw events to train on.

    \b
    Examples:
      clew generate runs/fastsim-001 --events 100000 --energy 1:100 --output showers.h5
      clew generate fastsim-001.onnx --events 1000 --energy 10:10 --output showers.h5 --workers 2
    """
    from clew.runs import Run

    ranges = options.ranges()
    model = options.run if Path(options.run).is_file() else Run.open(options.run)
    from clew.inference.generate import generate as generate_events  # loads torch, so a wrong name is reported first

    started = time.perf_counter()
    with counting("generate") as show, printed_warnings():
        generate_events(
            model,
            events=options.events,
            ranges=ranges,
            output=options.output,
            seed=options.seed,
            workers=options.workers,
            batch_size=options.batch_size,
            weights=options.weights,
            device=options.device,
            replace=options.replace,
            trust=options.trust,
            progress=show,
        )
    if not current_rank().rank:
        rate = options.events / max(time.perf_counter() - started, 1e-9)
        console.print(f"{bold(options.output)}: {options.events:,} events [dim]({rate:,.0f}/s)[/]")


def _range(name: str, text: str) -> tuple[float, float]:
    low, _, high = text.partition(":")
    try:
        return float(low), float(high or low)
    except ValueError:
        raise ConfigError(f"--{name} {text}: it must be LOW:HIGH, for example 1:100") from None
