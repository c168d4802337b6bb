"""`report.html`: one page, no server and no network needed, made from a run's files alone."""

from __future__ import annotations

import contextlib
import importlib.util
import json
from html import escape
from pathlib import Path
from typing import Any

from clew.errors import RunError
from clew.figure import Figure, figure, line, points
from clew.files import write_text
from clew.ledger import timeline
from clew.ledger.folder import Run
from clew.ledger.records import Record
from clew.ledger.summary import Summary, summarize

_PAGE = Path(__file__).with_name("report.template.html")


def write_report(run: Run) -> Path:
    """Write the page and return where it is."""
    summary = summarize(run)
    figures: list[Figure] = []
    body = [
        _header(summary, run),
        _cards(run.evaluations()),
        _scores(run.evaluations()),
        _section("Training", _figures(_curves(run), figures)),
        *_evaluation_plots(run, figures),
        _details(run, summary),
    ]
    _write(run.report_file, summary.name, body, figures)
    return run.report_file


def write_page(path: Path, title: str, facts: str, sections: list[tuple[str, str, list[Figure]]]) -> Path:
    """A page in the same style: a title, a line of facts, and sections of HTML and figures."""
    figures: list[Figure] = []
    body = [f'<header><h1>{escape(title)}</h1><p class="facts">{escape(facts)}</p></header>']
    for name, content, drawn in sections:
        plots = _figures({str(number): item for number, item in enumerate(drawn)}, figures) if drawn else ""
        body.append(_section(escape(name), content + plots))
    _write(path, title, body, figures)
    return path


def _write(path: Path, title: str, body: list[str], figures: list[Figure]) -> None:
    page = _PAGE.read_text(encoding="utf-8")
    for name, text in {
        "TITLE": escape(title),
        "BODY": "\n".join(body),
        "FIGURES": json.dumps(figures, allow_nan=False).replace("<", "\\u003c"),
        "PLOTLY": _plotly(),
    }.items():
        page = page.replace(f"<!--{name}-->", text, 1)
    write_text(path, page)


def _header(summary: Summary, run: Run) -> str:
    facts = [
        f"recipe <b>{escape(Path(summary.recipe).stem)}</b>",
        f"{summary.epochs_done} of {summary.epochs} epochs",
        f"{summary.workers} worker{'s' if summary.workers > 1 else ''}",
        f"{summary.parameters:,} parameters",
        f"{summary.samples_per_second:,.0f} samples/s",
        f"{summary.seconds:.0f} s",
    ]
    note = f'<p class="bad">{escape(summary.message)}</p>' if summary.message else ""
    return (
        f'<header><h1>{escape(summary.name)} <span class="state {summary.state}">{summary.state}</span></h1>'
        f'<p class="facts">{" · ".join(facts)}</p>{note}</header>'
    )


def _cards(evaluations: dict[str, Record]) -> str:
    """The first numbers of the first evaluation, large."""
    if not evaluations:
        return '<p class="facts">Not evaluated yet: <code>clew evaluate RUN</code> adds physics figures here.</p>'
    name, record = next(iter(evaluations.items()))
    cards = []
    for metric, entry in list(_plain(record["metrics"]).items())[:5]:
        error = f" <small>± {entry['error']:.4f}</small>" if entry["error"] is not None else ""
        cards.append(f'<div class="card"><span>{_label(metric)}</span><b>{entry["value"]:.4f}</b>{error}</div>')
    where = f"{escape(name)}: {record['events']:,} events from {escape(record['data'])}"
    return f'<div class="cards">{"".join(cards)}</div><p class="facts">{where}</p>'


def _scores(evaluations: dict[str, Record]) -> str:
    """Every metric of every evaluation, side by side."""
    if not evaluations:
        return ""
    names = list(dict.fromkeys(name for record in evaluations.values() for name in _plain(record["metrics"])))
    head = "".join(
        f"<th>{escape(name)}<br><small>{r['events']:,} events</small></th>" for name, r in evaluations.items()
    )
    rows = "".join(
        f"<tr><td>{_label(name)}</td>" + "".join(_cell(r["metrics"].get(name)) for r in evaluations.values()) + "</tr>"
        for name in names
    )
    return _section("Quality", f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{rows}</tbody></table>")


def _cell(entry: dict[str, Any] | None) -> str:
    if entry is None or entry["value"] is None:
        return "<td>–</td>"
    error = f" <small>± {entry['error']:.4f}</small>" if entry["error"] is not None else ""
    return f"<td>{entry['value']:.4f}{error}</td>"


def _plain(metrics: dict[str, Any]) -> dict[str, Any]:
    """Metrics that have a value, the loss last."""
    kept = {name: entry for name, entry in metrics.items() if entry["value"] is not None}
    return {**{n: e for n, e in kept.items() if n != "loss"}, **({"loss": kept["loss"]} if "loss" in kept else {})}


def curves(run: Run) -> Any:
    """Losses and validation metrics side by side, as a figure of plotly's."""
    from plotly.subplots import make_subplots

    drawn = _curves(run)
    page = make_subplots(1, 2, subplot_titles=("Loss", "Validation"))
    for place, name in enumerate(("loss", "metrics"), start=1):
        for trace in drawn[name]["data"] if name in drawn else ():
            page.add_trace(trace, row=1, col=place)
    page.update_xaxes(title_text="epoch")
    page.update_yaxes(type="log", row=1, col=1)
    page.update_layout(title=f"{run.name} ({run.state})", legend={"orientation": "h", "y": -0.2})
    return page


def _curves(run: Run) -> dict[str, Figure]:
    steps, validations = _of_kind(run, "rank-0", "step"), _of_kind(run, "rank-0", "validation")
    plan = run.last("plan")
    if not steps or plan is None:
        return {}
    each = max(plan["steps"] / max(plan["epochs"], 1), 1)
    loss = [
        line([s["step"] / each for s in steps], [s["loss"][name] for s in steps], name if name != "loss" else "train")
        for name in steps[0]["loss"]
    ]
    ends = [v["step"] / each for v in validations]
    if validations and "loss" in validations[0]["metrics"]:
        held_out = [v["metrics"]["loss"] for v in validations]
        loss.append(line(ends, held_out, "validation", colour=1, mode="lines+markers"))
    names = [n for n in (validations[0]["metrics"] if validations else ()) if n != "loss"]
    metrics = [
        line(ends, [v["metrics"].get(name) for v in validations], _label(name), colour=i % 8, mode="lines+markers")
        for i, name in enumerate(names)
    ]
    values = [v["metrics"].get(name) or 0.0 for v in validations for name in names]
    scale = {"range": [0, 1.02]} if all(0 <= value <= 1 for value in values) else {}
    speed = [(s["step"] / each, (s["samples"] - before) / s["seconds"]) for before, s in _pairs(steps)]
    return {
        "loss": figure(loss, title="Loss", x="epoch", y="loss", yaxis={"type": "log"}),
        "metrics": figure(metrics, title="Validation", x="epoch", y="", yaxis=scale),
        "speed": figure(
            [points([x for x, _ in speed], [y for _, y in speed], "samples/s", colour=2)],
            title="Speed, all workers together",
            x="epoch",
            y="samples/s",
            yaxis={"rangemode": "tozero"},
        ),
        "time": _time(run),
        **_observed(run),
    }


def _observed(run: Run) -> dict[str, Figure]:
    """What was traced and sampled, where anything was."""
    found: dict[str, Figure] = {}
    if any(run.trace_folder.glob("rank-*.trace")):
        with contextlib.suppress(RunError):  # a run that ended before its first step
            found["timeline"] = timeline.plot(run)
    usage = {stream: list(run.records(stream, "usage")) for stream in run.streams("usage")}
    begun = min((records[0]["time"] for records in usage.values() if records), default=0.0)
    lines = [
        line(
            [r["time"] - begun for r in records],
            [r["cpu"] for r in records],
            stream.replace("usage-", "rank "),
            colour=i % 8,
        )
        for i, (stream, records) in enumerate(usage.items())
        if len(records) > 1
    ]
    if lines:
        found["usage"] = figure(lines, title="Cores in use", x="seconds", y="cores", yaxis={"rangemode": "tozero"})
    return found


def _of_kind(run: Run, stream: str, kind: str) -> list[Record]:
    return [record for record in run.history(stream) if record["kind"] == kind]


def _pairs(steps: list[Record]) -> list[tuple[int, Record]]:
    return [(steps[i - 1]["samples"] if i else 0, step) for i, step in enumerate(steps)]


def _time(run: Run) -> Figure:
    """Where the time of each rank went."""
    bars: dict[str, list[float]] = {}
    ranks = [stream for stream in run.streams() if stream.startswith("rank-")]
    for stream in ranks:
        steps, validations = _of_kind(run, stream, "step"), _of_kind(run, stream, "validation")
        load, talk = sum(s["wait"] for s in steps), sum(s["communicate"] for s in steps)
        parts = {
            "compute": sum(s["seconds"] for s in steps) - load - talk,
            "communicate and wait": talk,
            "load": load,
            "validate": sum(v["seconds"] for v in validations),
        }
        for name, seconds in parts.items():
            bars.setdefault(name, []).append(round(seconds, 3))
    traces = [
        {"type": "bar", "orientation": "h", "name": name, "y": ranks, "x": seconds} for name, seconds in bars.items()
    ]
    return figure(traces, title="Where the time went", x="seconds", barmode="stack", yaxis={"autorange": "reversed"})


def _evaluation_plots(run: Run, figures: list[Figure]) -> list[str]:
    sections = []
    for name in run.evaluations():
        drawn = {path.stem: json.loads(path.read_text()) for path in sorted((run.plots / name).glob("*.json"))}
        if drawn:
            sections.append(_section(f"Evaluation: {escape(name)}", _figures(drawn, figures)))
    return sections


def _figures(drawn: dict[str, Figure], figures: list[Figure]) -> str:
    """Places for figures, whose data goes to the end of the page."""
    places = []
    for item in drawn.values():
        wide = " wide" if "xaxis2" in item["layout"] else ""
        places.append(f'<div class="plot{wide}" data-figure="{len(figures)}"></div>')
        figures.append(item)
    return f'<div class="plots">{"".join(places)}</div>'


def _details(run: Run, summary: Summary) -> str:
    environment = run.environment()
    rows = "".join(f"<tr><td>{escape(str(k))}</td><td>{escape(_text(v))}</td></tr>" for k, v in environment.items())
    config = escape(run.config_file.read_text())
    parts = [f"<details><summary>Settings</summary><pre>{config}</pre></details>"]
    parts.append(f"<details><summary>Environment</summary><table>{rows}</table></details>")
    if run.dataset_file.exists():
        parts.append(
            f"<details><summary>Dataset</summary>{_dataset(json.loads(run.dataset_file.read_text()))}</details>"
        )
    shares = ", ".join(f"{name} {share:.1%}" for name, share in summary.shares.items())
    return _section("To do it again", f'<p class="facts">Time of rank 0: {shares}</p>{"".join(parts)}')


def _dataset(manifest: dict[str, Any]) -> str:
    splits = {name: sum(shard["events"] for shard in shards) for name, shards in manifest["splits"].items()}
    inputs = "".join(
        f"<tr><td>{escape(i['name'])}</td><td>{i['events']:,} events</td><td><code>{i['sha256'][:12]}</code></td></tr>"
        for i in manifest["inputs"]
    )
    told = ", ".join(f"{name} {count:,}" for name, count in splits.items())
    return f"<p>{told} samples; key <code>{manifest['key'][:16]}</code></p><table>{inputs}</table>"


def _section(title: str, content: str) -> str:
    return f"<section><h2>{title}</h2>{content}</section>"


def _label(name: str) -> str:
    return escape(name.replace("_", " "))


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {version}" for name, version in value.items())
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _plotly() -> str:
    """Plotly's JavaScript, from its Python package, without importing that."""
    spec = importlib.util.find_spec("plotly")
    assert spec is not None and spec.origin is not None
    return (Path(spec.origin).parent / "package_data" / "plotly.min.js").read_text(encoding="utf-8")
