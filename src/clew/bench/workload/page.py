"""A workload's result as a page."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from clew.bench.workload.config import ACCURACY, PADDED, WorkloadConfig
from clew.bench.workload.environment import load_warnings
from clew.bench.workload.results import WorkloadResult, comparability_note, fit_message, key_figures
from clew.figure import COLOURS, Figure, figure, line
from clew.runs.html_page import HtmlPage, table


def write(result: WorkloadResult, path: Path) -> Path:
    """The page, in the look of a run's report."""
    config = WorkloadConfig(**result.config)
    found = key_figures(result)
    page = HtmlPage(f"Workload {config.name}")
    seen = result.environment
    facts = [
        escape(str(seen["cpu"])),
        f"{config.copies} cop{'ies' if config.copies > 1 else 'y'}",
        f"batch {config.batch_size} a device",
        escape(config.precision),
        f"{config.events:,} events, {config.epochs} epochs",
        escape(result.status),
    ]
    page.header(facts=facts, notes=notes(result, config))
    page.section("Result", headline(result, config, found), drawn(result))
    page.section("Every epoch", epochs(result))
    page.section("Batch sizes", scan(result), scan_figures(result))
    page.section("Inference, bins, memory", more(result))
    page.section(
        "Hashes", table((), [(escape(k), f"<code>{escape(v or 'none')}</code>") for k, v in result.hashes.items()])
    )
    page.section("Data", table((), [(escape(k), escape(str(v))) for k, v in result.data.items()]))
    page.section("Settings", table((), [(escape(k), escape(str(v))) for k, v in result.config.items()]))
    page.section("Environment", table((), [(escape(k), escape(str(v))) for k, v in seen.items()]))
    return page.write(path)


def notes(result: WorkloadResult, config: WorkloadConfig) -> list[str]:
    """What a reader must know first."""
    found = [escape(f"seed {a.seed}, copy {a.copy}: {a.message}") for a in result.attempts if a.message]
    if result.fits is not None:
        found.insert(0, f"Out of memory at a batch of {result.fits['asked']}; {fit_message(result.fits)}.")
    seen = result.environment
    return [
        *load_warnings(seen.get("load_before"), seen.get("cores_allowed")),
        *found,
        escape(comparability_note(config)),
    ]


def headline(result: WorkloadResult, config: WorkloadConfig, found: dict[str, Any]) -> str:
    """The figures that count."""
    left = "first epoch left out" if found["first_epoch_left_out"] else "one epoch alone, which warms up"
    speeds = result.speeds
    many = f", {min(speeds):.3g} to {max(speeds):.3g} over {len(speeds)} seeds" if len(speeds) > 1 else ""
    rows = [
        ("events/s, all copies", f"<b>{number(found['events_per_second'])}</b> <small>{left}{many}</small>"),
        ("accuracy of elements that are there", _accuracy(found, ACCURACY)),
        ("accuracy with padding counted", f"{_accuracy(found, PADDED)} <small>as the published figure</small>"),
        ("pass band", _band(found)),
        ("time to target", _target(found)),
        ("J/event", f"{number(found['joules_per_event'])} <small>{escape(result.power)}</small>"),
        ("peak memory of a copy", _bytes(found["peak_memory_bytes"])),
        ("peak memory of a device", _bytes(found["peak_device_memory_bytes"])),
        ("of that the training's tensors", _bytes(found["peak_device_tensors_bytes"])),
        ("waiting for data", _percent(found["data_wait_share"])),
        ("padding", _percent(found["padding_share"])),
    ]
    return table((), [row for row in rows if row[1] != "–"])


def _accuracy(found: dict[str, Any], name: str) -> str:
    told = found["accuracy"][name]
    if told is None:
        return "–"
    spread = f" ± {told['deviation']:.4f} over {told['n']} seeds" if told["deviation"] is not None else ""
    return f"{told['mean']:.4f}<small>{spread}</small>"


def _band(found: dict[str, Any]) -> str:
    band = found["band"]
    if band is None:
        return "none known for this configuration"
    told = {True: "passed", False: "<b>not passed</b>", None: "not known yet"}[found["passed"]]
    return f"{escape(band['metric'])} from {band['low']:.4f} to {band['high']:.4f}: {told}"


def _target(found: dict[str, Any]) -> str:
    if found["target"] is None:
        return "no target; give one with --target"
    took = found["seconds_to_target"]
    return f"{found['target']:.4f} {'not reached' if took is None else f'after {took:,.1f} s'}"


def number(value: float | None) -> str:
    """Three digits, or a dash."""
    return "–" if value is None else f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _bytes(value: float | None) -> str:
    return "–" if value is None else f"{value / 2**30:.2f} GiB"


def drawn(result: WorkloadResult) -> list[Figure]:
    """Speed and accuracy by epoch."""
    if not result.good:
        return []
    speed, accuracy = [], []
    for place, each in enumerate(result.good):
        title, colour = f"seed {each.seed}, copy {each.copy}", place % len(COLOURS)
        x = [epoch.number + 1 for epoch in each.epochs]
        marks = ["circle-open" if epoch not in each.counted else "circle" for epoch in each.epochs]
        own: dict[str, Any] = {
            "marker": {
                "symbol": marks,
                "size": 9,
                "color": COLOURS[colour],
                "line": {"width": 2, "color": COLOURS[colour]},
            }
        }
        speed.append(line(x, [epoch.speed for epoch in each.epochs], title, colour=colour, mode="lines+markers", **own))
        for name, dash in ((ACCURACY, "solid"), (PADDED, "dot")) if not each.copy else ():
            known = [
                (n, epoch.metrics[name]) for n, epoch in zip(x, each.epochs, strict=True) if epoch.metrics.get(name)
            ]
            if known:
                style: dict[str, Any] = {"line": {"color": COLOURS[colour], "width": 2, "dash": dash}}
                ends, values = zip(*known, strict=True)
                called = f"seed {each.seed}{', padding counted' if name == PADDED else ''}"
                accuracy.append(line(ends, values, called, mode="lines+markers", **style))
    whole: dict[str, Any] = {"dtick": 1} if len(result.good[0].epochs) < 12 else {}
    made = [
        figure(
            speed,
            title="Speed of each epoch (hollow: left out)",
            x="epoch",
            y="events/s",
            showlegend=True,
            xaxis=whole,
            yaxis={"rangemode": "tozero"},
        )
    ]
    if accuracy:
        made.append(figure(accuracy, title="Accuracy", x="epoch", y="", showlegend=True, xaxis=whole))
    return made


def epochs(result: WorkloadResult) -> str:
    """A row an epoch."""
    head = ("seed", "copy", "epoch", "seconds", "events/s", "validation loss", "accuracy", "padding counted", "")
    rows = [
        (
            str(each.seed),
            str(each.copy),
            str(epoch.number + 1),
            f"{epoch.seconds:,.2f}",
            number(epoch.speed),
            "–" if epoch.loss is None else f"{epoch.loss:.5g}",
            *("–" if epoch.metrics.get(name) is None else f"{epoch.metrics[name]:.4f}" for name in (ACCURACY, PADDED)),
            "" if epoch in each.counted else "left out",
        )
        for each in result.attempts
        for epoch in each.epochs
    ]
    return table(head, rows) if rows else ""


def scan(result: WorkloadResult) -> str:
    """A row a batch size."""
    head = ("batch a device", "devices", "events/s", "accuracy", "")
    rows = [
        (
            str(row["batch_size_per_device"]),
            str(row["devices"]),
            number(row["events_per_second"]),
            "–" if row["accuracy"] is None else f"{row['accuracy']:.4f}",
            ""
            if row["fits"] and not row["message"]
            else "out of memory"
            if not row["fits"]
            else escape(row["message"]),
        )
        for row in result.scan
    ]
    return table(head, rows) if rows else ""


def scan_figures(result: WorkloadResult) -> list[Figure]:
    """Speed and accuracy against batch size, a line a number of devices."""
    known = sorted((r for r in result.scan if r["events_per_second"]), key=lambda r: int(r["batch_size_per_device"]))
    sizes = sorted({row["batch_size_per_device"] for row in known})
    if len(sizes) < 2:
        return []
    ticks: dict[str, Any] = {"type": "log", "tickvals": sizes, "ticktext": [str(size) for size in sizes], "dtick": None}
    made = []
    for key, title, unit in (("events_per_second", "Speed", "events/s"), ("accuracy", "Accuracy", "")):
        traces = []
        for place, count in enumerate(sorted({row["devices"] for row in known})):
            own = [row for row in known if row["devices"] == count and row[key] is not None]
            x, y = [row["batch_size_per_device"] for row in own], [row[key] for row in own]
            name = f"{count} device{'s' if count > 1 else ''}" if count else "processors"
            traces += [line(x, y, name, colour=place % len(COLOURS), mode="lines+markers")] if own else []
        base: dict[str, Any] = {"rangemode": "tozero"} if unit else {}
        if traces:
            made.append(
                figure(traces, title=title, x="batch a device", y=unit, showlegend=True, xaxis=ticks, yaxis=base)
            )
    return made


def more(result: WorkloadResult) -> str:
    """What was measured besides."""
    rows = []
    if result.inference:
        told = result.inference
        rows.append(("inference", f"{number(told['events_per_second'])} events/s at batch {told['batch_size']}"))
    if result.bins:
        (one, other), count = result.bins["between"], f"of {result.bins['elements']:,}"
        share, told = result.bins["share_of_elements_that_flip"], result.bins["share_told_another_class"]
        rows.append(("elements in another bin", f"{share:.4%} {count} with {other} than with {one}"))
        rows.append(
            ("elements told another class", f"{told:.4%}; the accuracy moves by {result.bins['accuracy_gap']:.4%}")
        )
    if result.fits:
        tried = ", ".join(f"{t['batch_size']} {'fits' if t['fits'] else 'does not'}" for t in result.fits["tried"])
        rows.append(("batches tried", tried))
    return table((), rows) if rows else ""
