"""`clew bench strategies`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer
from rich.markup import escape

from clew.cli.bench.sending import send_result
from clew.cli.bench.values import Json, choices, parts
from clew.cli.options import Settings, What, bold, console, parse_seconds, progress, table, takes_options
from clew.errors import ConfigError

if TYPE_CHECKING:
    from clew.bench.strategies.results import StrategyStudy
    from clew.bench.strategies.study import StrategyProgress, StrategyStudyConfig


@dataclass(frozen=True, kw_only=True)
class StrategyOptions:
    """All options of `clew bench strategies`."""

    recipe: What
    bandwidth: Annotated[
        str, typer.Option(help="Bandwidths of each host, separated by commas; `unlimited` sets no limit.")
    ] = "10Gbit,1Gbit,100Mbit"
    delay: Annotated[
        str, typer.Option(help="Time that a packet needs from one host to another, for example 1ms or 0.1ms.")
    ] = "0ms"
    strategy: Annotated[str, typer.Option(help="Strategies, separated by commas.")] = (
        "allreduce,diloco,easgd,gem,downpour"
    )
    dataset: Annotated[str | None, typer.Option(help="A dataset made by `clew prepare`.")] = None
    workers: Annotated[int, typer.Option(help="Number of workers, one host each.")] = 2
    epochs: Annotated[
        int | None, typer.Option(help="Epochs of the reference; the other trainings get three times as many.")
    ] = None
    metric: Annotated[str | None, typer.Option(help="Metric of the validation (default: train.best.metric).")] = None
    target: Annotated[
        float | None,
        typer.Option(help="Value to reach (default: what allreduce reaches without a limit, minus 2%)."),
    ] = None
    direction: Annotated[str | None, typer.Option(help="Direction of the metric: minimize or maximize.")] = None
    repeat: Annotated[
        int, typer.Option(help="Trainings per strategy and bandwidth, with different seeds; the median counts.")
    ] = 1
    limit: Annotated[str, typer.Option(help="Time limit per training, for example 90s or 10m.")] = "10m"
    settings: Settings = None
    output: Annotated[Path, typer.Option(help="A new folder for the runs, study.json and study.html.")] = Path(
        "strategies"
    )
    json: Json = False

    def config(self) -> StrategyStudyConfig:
        """The settings of the study."""
        from clew.bench.strategies.study import Strategy, StrategyStudyConfig
        from clew.core.config import Document, validate

        names = ("recipe", "dataset", "workers", "epochs", "metric", "target", "direction", "repeat")
        options = {
            **{name: getattr(self, name) for name in names},
            "strategies": choices(self.strategy, "--strategy", get_args(Strategy)),
            "bandwidths": parts(self.bandwidth),
            "delay": _delay_seconds(self.delay),
            "minutes": parse_seconds(self.limit, "--limit") / 60,
            "settings": list(self.settings or ()),
        }
        return validate(StrategyStudyConfig, Document(options, {}, "clew bench strategies"))


def _delay_seconds(text: str) -> float:
    number, unit = text.removesuffix("ms"), text.endswith("ms")
    if not unit or not number.replace(".", "", 1).isdigit():
        raise ConfigError(f"--delay {text}: expected milliseconds such as 1ms or 0.1ms")
    return float(number) / 1000


@takes_options(StrategyOptions)
def strategies(options: StrategyOptions) -> None:
    """Measure which strategy reaches a target first, per bandwidth between hosts.

    The hosts are network namespaces of this machine (root and iproute2 are needed): one per worker, and one for the
    master of the strategies that have one. They are always removed at the end.

    \b
    Examples:
      clew bench strategies tracking --dataset dataset
      clew bench strategies tracking --bandwidth 1Gbit,100Mbit --metric f1 --target 0.9
      clew bench strategies tracking --bandwidth 1Gbit --delay 5ms --workers 4
      clew bench strategies my.yaml --strategy allreduce,diloco --workers 4 --repeat 3 --limit 5m --output study
    """
    from clew.bench.strategies.study import compare_strategies

    config, output = options.config(), options.output
    with progress() as bar:
        task = bar.add_task("strategies", total=None, note="creating hosts")

        def on_progress(now: StrategyProgress) -> None:
            bar.update(task, completed=now.done, total=now.total, note=_note(now))
            if now.ended and not options.json:
                bar.console.print(f"  {_line(now)}")

        result = compare_strategies(config, output, on_progress)
    send_result(f"strategies {config.recipe}", output / "study.json", quiet=options.json)
    if options.json:
        typer.echo((output / "study.json").read_text(), nl=False)
        return
    _show(result)
    console.print(f"[dim]page:[/] {bold(output / 'study.html')}   [dim]runs:[/] {bold(output / 'runs')}")


def _note(now: StrategyProgress) -> str:
    trial = now.run
    value = f", {trial.curve[-1][1]:.4f} after epoch {trial.epochs}" if trial.curve else ""
    return f"{trial.strategy} at {trial.bandwidth}: {now.seconds:.0f} s{value}"


def _line(now: StrategyProgress) -> str:
    trial = now.run
    count = f"{trial.epochs} epoch{'s' if trial.epochs != 1 else ''}"
    best = "no validation" if trial.best is None else f"best {trial.best:.4f} in {count}"
    best = f"failed: {trial.message}" if trial.message else best
    reached = "" if trial.seconds is None else f"target after {trial.seconds:.1f} s, "
    return escape(f"[{now.done}/{now.total}] {trial.strategy} at {trial.bandwidth}: {reached}{best}")


def _show(result: StrategyStudy) -> None:
    goal = result.goal
    sign = ">=" if goal.direction == "maximize" else "<="
    kind = "median seconds" if result.conditions["repeat"] > 1 else "seconds"
    target = f"{sign} {goal.value:g}, {result.conditions['workers']} workers"
    console.print(f"\n{kind} to {bold(goal.metric)} {target}")
    rows = [(name, *(_cell(result, name, each) for each in result.lines)) for name in result.strategies]
    rows.append(("[line, measured]", *(f"{speed / 1e6:,.0f} Mbit/s" for speed in result.lines.values())))
    if result.conditions["delay"]:
        times = result.conditions["round_trip"]
        rows.append(("[there and back, measured]", *(f"{1000 * times[each]:.2g} ms" for each in result.lines)))
    console.print(table(("", *result.lines), rows, right=range(1, len(result.lines) + 1)))
    for trial in result.trials:
        if trial.message:
            console.print(f"[yellow]{trial.strategy} at {trial.bandwidth}:[/] {escape(trial.message)}")


def _cell(result: StrategyStudy, name: str, bandwidth: str) -> str:
    middle = result.seconds(name, bandwidth)
    if middle is not None:
        return f"{middle:,.1f}{' *' if result.fastest(bandwidth) == name else ''}"
    best = result.goal.best([trial.best for trial in result.runs_at(name, bandwidth) if trial.best is not None])
    return "failed" if best is None else f"not reached ({best:.3g})"
