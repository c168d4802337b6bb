"""The HTML page of a workload's result."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from clew.bench.pages import (
    MISSING,
    BenchPage,
    PageSection,
    colour,
    facts_table,
    format_bytes,
    format_number,
    load_warnings,
)
from clew.bench.workload.config import ACCURACY, PADDED, WorkloadConfig
from clew.bench.workload.results import WorkloadResult, comparability_note, fit_message, key_figures
from clew.bench.workload.training_run import WorkloadRun
from clew.figure import Figure, figure, line
from clew.runs.html_page import table


def write(result: WorkloadResult, path: Path) -> Path:
    """Write the page and return its path."""
    config = WorkloadConfig(**result.config)
    facts = [
        escape(str(result.environment["cpu"])),
        f"{config.copies} cop{'ies' if config.copies > 1 else 'y'}",
        f"batch {config.batch_size} per device",
        escape(config.precision),
        f"{config.events:,} events, {config.epochs} epochs",
        escape(result.status),
    ]
    hashes = [(escape(name), f"<code>{escape(value or 'none')}</code>") for name, value in result.hashes.items()]
    sections = [
        PageSection("Result", headline(result), epoch_figures(result)),
        PageSection("Every epoch", epoch_table(result)),
        PageSection("Batch sizes", scan_table(result), scan_figures(result)),
        PageSection("Inference, agreement, memory", other_measurements(result)),
        PageSection("Hashes", table((), hashes)),
        PageSection("Clocks during the trainings", facts_table(result.clocks)),
        PageSection("Data", facts_table(result.data)),
        PageSection("Settings", facts_table(result.config)),
        PageSection("Environment", facts_table(result.environment)),
    ]
    return BenchPage(f"Workload {config.name}", facts, notes(result, config), sections).write(path)


def notes(result: WorkloadResult, config: WorkloadConfig) -> list[str]:
    """Return what a reader must know first: a busy machine, failures, and what can be compared."""
    failures = [escape(f"seed {run.seed}, copy {run.copy}: {run.message}") for run in result.runs if run.message]
    if result.fits is not None:
        failures.insert(0, f"Out of memory at a batch of {result.fits['requested']}; {fit_message(result.fits)}.")
    machine = result.environment
    warnings = load_warnings(machine.get("load_before"), machine.get("cores_allowed"))
    return [*warnings, *failures, escape(comparability_note(config))]


def headline(result: WorkloadResult) -> str:
    """Return a table of the key figures."""
    figures = key_figures(result)
    excluded = "first epoch not counted" if figures["first_epoch_left_out"] else "one epoch only, with warm-up"
    speeds = result.speeds
    seeds = f", {min(speeds):.3g} to {max(speeds):.3g} over {len(speeds)} seeds" if len(speeds) > 1 else ""
    speed = f"<b>{format_number(figures['events_per_second'])}</b> <small>{excluded}{seeds}</small>"
    rows = [
        ("events/s, all copies", speed),
        ("accuracy without padding", _accuracy(figures, ACCURACY)),
        ("accuracy with padding counted", f"{_accuracy(figures, PADDED)} <small>as in the publication</small>"),
        ("pass band", _pass_band(figures)),
        ("time to target", _time_to_target(figures)),
        ("J/event", f"{format_number(figures['joules_per_event'])} <small>{escape(result.power)}</small>"),
        ("peak memory of a copy", format_bytes(figures["peak_memory_bytes"])),
        ("peak memory of a device", format_bytes(figures["peak_device_memory_bytes"])),
        ("peak memory of tensors", format_bytes(figures["peak_device_tensors_bytes"])),
        ("waiting for data", format_number(figures["data_wait_share"], ".1%")),
        ("padding", format_number(figures["padding_share"], ".1%")),
    ]
    return table((), [row for row in rows if row[1] != MISSING])


def _accuracy(figures: dict[str, Any], name: str) -> str:
    accuracy = figures["accuracy"][name]
    if accuracy is None:
        return MISSING
    deviation = accuracy["deviation"]
    spread = f" ± {deviation:.4f} over {accuracy['n']} seeds" if deviation is not None else ""
    return f"{accuracy['mean']:.4f}<small>{spread}</small>"


def _pass_band(figures: dict[str, Any]) -> str:
    band = figures["band"]
    if band is None:
        return "none for this configuration"
    verdict = {True: "passed", False: "<b>not passed</b>", None: "not known yet"}[figures["passed"]]
    return f"{escape(band['metric'])} from {band['low']:.4f} to {band['high']:.4f}: {verdict}"


def _time_to_target(figures: dict[str, Any]) -> str:
    if figures["target"] is None:
        return "no target; set one with --target"
    seconds = figures["seconds_to_target"]
    return f"{figures['target']:.4f} {'not reached' if seconds is None else f'after {seconds:,.1f} s'}"


def epoch_figures(result: WorkloadResult) -> list[Figure]:
    """Return figures of speed and accuracy against epochs."""
    runs = result.successful
    if not runs:
        return []
    ticks: dict[str, Any] = {"dtick": 1} if len(runs[0].epochs) < 12 else {}
    layout: dict[str, Any] = {"x": "epoch", "showlegend": True, "xaxis": ticks}
    speed = [_speed_line(run, index) for index, run in enumerate(runs)]
    figures = [
        figure(
            speed,
            title="Speed of each epoch (hollow: not counted)",
            y="events/s",
            yaxis={"rangemode": "tozero"},
            **layout,
        )
    ]
    first_copies = [(index, run) for index, run in enumerate(runs) if not run.copy]
    accuracy = [trace for index, run in first_copies for trace in _accuracy_lines(run, index)]
    if accuracy:
        figures.append(figure(accuracy, title="Accuracy", y="", **layout))
    return figures


def _speed_line(run: WorkloadRun, index: int) -> dict[str, Any]:
    symbols = ["circle" if epoch in run.measured_epochs else "circle-open" for epoch in run.epochs]
    outline = {"width": 2, "color": colour(index)}
    return line(
        [epoch.number + 1 for epoch in run.epochs],
        [epoch.speed for epoch in run.epochs],
        f"seed {run.seed}, copy {run.copy}",
        colour=index,
        mode="lines+markers",
        marker={"symbol": symbols, "size": 9, "color": colour(index), "line": outline},
    )


def _accuracy_lines(run: WorkloadRun, index: int) -> list[dict[str, Any]]:
    traces = []
    for name, dash in ((ACCURACY, "solid"), (PADDED, "dot")):
        points = [(epoch.number + 1, epoch.metrics[name]) for epoch in run.epochs if epoch.metrics.get(name)]
        if points:
            x, y = zip(*points, strict=True)
            title = f"seed {run.seed}{', padding counted' if name == PADDED else ''}"
            stroke = {"color": colour(index), "width": 2, "dash": dash}
            traces.append(line(x, y, title, mode="lines+markers", line=stroke))
    return traces


def epoch_table(result: WorkloadResult) -> str:
    """Return a table with one row per epoch."""
    head = ("seed", "copy", "epoch", "seconds", "events/s", "validation loss", "accuracy", "padding counted", "")
    rows = [
        (
            str(run.seed),
            str(run.copy),
            str(epoch.number + 1),
            f"{epoch.seconds:,.2f}",
            format_number(epoch.speed),
            format_number(epoch.loss, ".5g"),
            *(format_number(epoch.metrics.get(name), ".4f") for name in (ACCURACY, PADDED)),
            "" if epoch in run.measured_epochs else "not counted",
        )
        for run in result.runs
        for epoch in run.epochs
    ]
    return table(head, rows) if rows else ""


def scan_table(result: WorkloadResult) -> str:
    """Return a table with one row per batch size."""
    rows = [
        (
            str(row["batch_size_per_device"]),
            str(row["devices"]),
            format_number(row["events_per_second"]),
            format_number(row["accuracy"], ".4f"),
            escape(row["message"]) if row["fits"] else "out of memory",
        )
        for row in result.scan
    ]
    return table(("batch per device", "devices", "events/s", "accuracy", ""), rows) if rows else ""


def scan_figures(result: WorkloadResult) -> list[Figure]:
    """Return figures of speed and accuracy against batch size, one line per number of devices."""
    rows = sorted((row for row in result.scan if row["events_per_second"]), key=lambda row: _batch(row))
    sizes = sorted({_batch(row) for row in rows})
    if len(sizes) < 2:
        return []
    ticks: dict[str, Any] = {"type": "log", "tickvals": sizes, "ticktext": [str(size) for size in sizes], "dtick": None}
    figures = []
    for key, title, unit in (("events_per_second", "Speed", "events/s"), ("accuracy", "Accuracy", "")):
        traces = []
        for index, count in enumerate(sorted({row["devices"] for row in rows})):
            points = [(_batch(row), row[key]) for row in rows if row["devices"] == count and row[key] is not None]
            if points:
                x, y = zip(*points, strict=True)
                name = f"{count} device{'s' if count > 1 else ''}" if count else "processors"
                traces.append(line(x, y, name, colour=index, mode="lines+markers"))
        base: dict[str, Any] = {"rangemode": "tozero"} if unit else {}
        if traces:
            layout: dict[str, Any] = {"showlegend": True, "xaxis": ticks, "yaxis": base}
            figures.append(figure(traces, title=title, x="batch per device", y=unit, **layout))
    return figures


def _batch(row: dict[str, Any]) -> int:
    return int(row["batch_size_per_device"])


def other_measurements(result: WorkloadResult) -> str:
    """Return a table of inference speed, agreement of outputs, and batch sizes that were tried."""
    rows = []
    if result.inference:
        speed = format_number(result.inference["events_per_second"])
        rows.append(("inference", f"{speed} events/s at batch {result.inference['batch_size']}"))
    if result.agreement:
        rows += agreement_rows(result.agreement)
    if result.fits:
        tried = ", ".join(f"{t['batch_size']} {'fits' if t['fits'] else 'does not'}" for t in result.fits["tried"])
        rows.append(("batches tried", tried))
    return table((), rows) if rows else ""


def agreement_rows(agreement: dict[str, Any]) -> list[tuple[str, str]]:
    """Return one row per output: the share of entries that differ between two ways to compute it."""
    first, second = agreement["between"]
    rows = []
    for name, difference in agreement["outputs"].items():
        text = f"{difference['differ']:.4%} differ between {first} and {second}"
        if "mean_difference" in difference:
            text += f"; the mean changes by {difference['mean_difference']:.4%}"
        rows.append((f"output '{name}'", text))
    return rows
