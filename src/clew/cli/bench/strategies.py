"""`clew bench strategies`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from clew.cli.options import Settings, What, bold, console, parse_seconds, progress, table

if TYPE_CHECKING:
    from clew.bench.strategies.results import StrategyStudy
    from clew.bench.strategies.study import StrategyProgress


def strategies(
    recipe: What,
    bandwidth: Annotated[
        str, typer.Option(help="Of each host's line, several with commas; `unlimited` is one.")
    ] = "10Gbit,1Gbit,100Mbit",
    strategy: Annotated[str, typer.Option(help="Which ones, with commas.")] = "allreduce,diloco,easgd,gem,downpour",
    dataset: Annotated[str | None, typer.Option(help="A folder that `clew prepare` made.")] = None,
    workers: Annotated[int, typer.Option(help="Hosts that learn.")] = 2,
    epochs: Annotated[int | None, typer.Option(help="Of the reference; the others get three times as many.")] = None,
    metric: Annotated[str | None, typer.Option(help="Of the validation (default: train.best.metric).")] = None,
    target: Annotated[
        float | None,
        typer.Option(help="Value to reach (default: what allreduce reaches without a limit, less a fiftieth)."),
    ] = None,
    direction: Annotated[str | None, typer.Option(help="Of the metric: minimize or maximize.")] = None,
    repeat: Annotated[int, typer.Option(help="Trainings of each kind, with other seeds; the median counts.")] = 1,
    limit: Annotated[str, typer.Option(help="The longest that one training may take: 90s, 10m.")] = "10m",
    settings: Settings = None,
    output: Annotated[Path, typer.Option(help="A new folder for the runs, study.json and study.html.")] = Path(
        "strategies"
    ),
    json: Annotated[bool, typer.Option("--json", help="For other programs: print study.json.")] = False,
) -> None:
    """Which strategy is first at a target, by the bandwidth between hosts.

    Hosts are network namespaces of this machine (root and iproute2 are needed): a worker each, and one for the master
    of the strategies that have one. They are removed again however this ends.

    \b
    Examples:
      clew bench strategies tracking --dataset dataset
      clew bench strategies tracking --bandwidth 1Gbit,100Mbit --metric f1 --target 0.9
      clew bench strategies my.yaml --strategy allreduce,diloco --workers 4 --repeat 3 --limit 5m --output study
    """
    from clew.bench.strategies.study import StrategyStudyConfig, compare_strategies
    from clew.core.config import Document, validate

    given = {
        "recipe": recipe,
        "dataset": dataset,
        "strategies": _parts(strategy),
        "bandwidths": _parts(bandwidth),
        "workers": workers,
        "epochs": epochs,
        "metric": metric,
        "target": target,
        "direction": direction,
        "repeat": repeat,
        "minutes": parse_seconds(limit, "--limit") / 60,
        "settings": list(settings or ()),
    }
    config = validate(StrategyStudyConfig, Document(given, {}, "clew bench strategies"))
    with progress() as bar:
        task = bar.add_task("compare", total=None, note="making hosts")

        def told(now: StrategyProgress) -> None:
            bar.update(task, completed=now.done, total=now.total, note=_note(now))
            if now.over and not json:
                bar.console.print(f"  {_line(now)}")

        found = compare_strategies(config, output, told)
    if json:
        typer.echo((output / "study.json").read_text(), nl=False)
        return
    _show(found)
    console.print(f"[dim]page:[/] {bold(output / 'study.html')}   [dim]runs:[/] {bold(output / 'runs')}")


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _note(now: StrategyProgress) -> str:
    trial = now.trial
    value = f", {trial.curve[-1][1]:.4f} after epoch {trial.epochs}" if trial.curve else ""
    return f"{trial.strategy} at {trial.bandwidth}: {now.spent:.0f} s{value}"


def _line(now: StrategyProgress) -> str:
    trial = now.trial
    count = f"{trial.epochs} epoch{'s' if trial.epochs != 1 else ''}"
    best = "no validation" if trial.best is None else f"best {trial.best:.4f} in {count}"
    best = f"failed: {trial.message}" if trial.message else best
    reached = "" if trial.seconds is None else f"target after {trial.seconds:.1f} s, "
    return escape(f"[{now.done}/{now.total}] {trial.strategy} at {trial.bandwidth}: {reached}{best}")


def _show(found: StrategyStudy) -> None:
    goal = found.goal
    sign = ">=" if goal.direction == "maximize" else "<="
    kind = "median seconds" if found.conditions["repeat"] > 1 else "seconds"
    told = f"{sign} {goal.value:g}, {found.conditions['workers']} workers"
    console.print(f"\n{kind} to {bold(goal.metric)} {told}")
    rows = [(name, *(_cell(found, name, each) for each in found.lines)) for name in found.strategies]
    rows.append(("[line, measured]", *(f"{speed / 1e6:,.0f} Mbit/s" for speed in found.lines.values())))
    console.print(table(("", *found.lines), rows, right=range(1, len(found.lines) + 1)))
    for trial in found.trials:
        if trial.message:
            console.print(f"[yellow]{trial.strategy} at {trial.bandwidth}:[/] {escape(trial.message)}")


def _cell(found: StrategyStudy, name: str, bandwidth: str) -> str:
    middle = found.seconds(name, bandwidth)
    if middle is not None:
        return f"{middle:,.1f}{' *' if found.fastest(bandwidth) == name else ''}"
    best = found.goal.best([trial.best for trial in found.of(name, bandwidth) if trial.best is not None])
    return "failed" if best is None else f"not reached ({best:.3g})"
