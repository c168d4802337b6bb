"""The tables of docs/measurements/scaling.md from the results of `scale_cores.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

PARTS = ("compute", "communicate", "wait", "io")


def tables(results: Mapping[str, Any]) -> str:
    """Return the tables in Markdown."""
    parts = (_conditions, _preparing, _training, _copies, _asynchronous, _many)
    texts = [part(results) for part in parts]
    for name in ("skipped", "failed"):
        if results.get(name):
            texts.append(f"{name.capitalize()}: {'; '.join(results[name])}.")
    return "\n\n".join(text for text in texts if text)


def _table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def _conditions(results: Mapping[str, Any]) -> str:
    conditions = results["conditions"]
    disk = ", ".join(f"{speed:.2f} GB/s by {n}" for n, speed in results.get("disk", []))
    load = conditions["load"][0]
    return f"{conditions['cores']} cores, load {load:.1f} before; files are written at {disk or '?'} processes."


def _preparing(results: Mapping[str, Any]) -> str:
    rows = results.get("prepare", [])
    one = next((row for row in rows if row["executor"] == "processes" and row["processes"] == 1), None)
    lines = []
    for row in sorted(rows, key=lambda row: (row["executor"] != "processes", row["executor"], row["processes"])):
        speed, phases = row["events"] / row["seconds"], row["phases"]
        base = one["events"] / one["seconds"] if one else 0.0
        efficiency = f"{speed / base / row['processes']:.2f}" if one else ""
        times = f"{speed / base:.1f}" if one else ""
        per_core = f"{row['events'] / row['core_seconds']:,.0f}"
        seconds = [f"{row['seconds']:.1f}", f"{phases['imports']:.2f}", f"{phases['plan']:.2f}"]
        seconds += [f"{phases['serial'] - phases['imports'] - phases['plan']:.2f}", f"{phases['serial']:.2f}"]
        lines.append([row["executor"], row["processes"], f"{speed:,.0f}", times, efficiency, per_core, *seconds])
    heads = ["executor", "processes", "events/s", "times", "efficiency", "events per core second", "seconds"]
    heads += ["imports", "plan", "other serial", "serial in all"]
    events = rows[0]["events"] if rows else 0
    cached = ", ".join(f"{each:.2f} s" for each in results.get("again", []))
    return f"Preparing {events:,} events; nothing changed: {cached}.\n\n{_table(heads, lines)}" if rows else ""


def _training(results: Mapping[str, Any]) -> str:
    rows = results.get("training", [])
    lines = []
    for row in rows:
        same = [r for r in rows if all(r[key] == row[key] for key in ("task", "mode", "bucket"))]
        one = next((r for r in same if r["ranks"] == 1), None)
        speed = row["events_per_second"]
        efficiency = f"{speed / one['events_per_second'] / row['ranks']:.2f}" if one else ""
        torch = row.get("torch_events_per_second")
        shares = [f"{100 * row['shares'][part]:.0f}%" for part in PARTS]
        line = [row["task"], row["mode"] + (", bucketed" if row["bucket"] else ""), row["batch"], row["ranks"]]
        line += [f"{speed:,.1f}", efficiency, f"{row['bound']:.2f}", *shares]
        lines.append([*line, f"{speed / torch:.2f}" if torch else "", row["start_seconds"], row["memory_mb"]])
    heads = ["task", "batch", "events", "ranks", "events/s", "efficiency", "bound"]
    heads += ["compute", "communicate", "wait", "load"]
    return _table([*heads, "against DDP", "start, s", "MB per rank"], lines) if rows else ""


def _copies(results: Mapping[str, Any]) -> str:
    rows = results.get("copies", [])
    one = next((row["events_per_second"] for row in rows if row["copies"] == 1), None)
    lines = []
    for row in rows:
        speed = row["events_per_second"]
        lines.append([row["task"], row["copies"], f"{speed:,.0f}", f"{speed / one / row['copies']:.2f}" if one else ""])
    heads = ["task", "independent trainings at once", "events/s", "efficiency"]
    return _table(heads, lines) if rows else ""


def _asynchronous(results: Mapping[str, Any]) -> str:
    rows = results.get("asynchronous", [])
    one = next((row for row in rows if row["workers"] == 1), None)
    lines = []
    for row in rows:
        speed = row["events_per_second"]
        efficiency = f"{speed / one['events_per_second'] / row['workers']:.2f}" if one else ""
        shares = [f"{100 * row['shares'].get(part, 0):.0f}%" for part in ("compute", "communicate", "data wait")]
        lines.append([row["rule"], row["workers"], f"{speed:,.0f}", efficiency, *shares, f"{row['loss']:.4f}"])
    heads = ["rule", "workers", "events/s", "efficiency", "compute", "communicate and wait", "load", "last loss"]
    return _table(heads, lines) if rows else ""


def _many(results: Mapping[str, Any]) -> str:
    texts = [
        f"{row['ranks']} ranks: started and trained in {row['seconds']} s, resumed in {row['resume_seconds']} s, "
        f"{row['steps']} steps, {row['mb']:.0f} MB per rank."
        for row in results.get("many ranks", [])
    ]
    return "\n".join(texts)
