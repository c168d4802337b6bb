"""`report.html`: the page of a run, made from its files alone, in whatever state they are."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from clew.figure import Figure
from clew.runs import async_workers, training_figures
from clew.runs.failure import FailureReport, failure_report
from clew.runs.folder import Run
from clew.runs.html_page import HtmlPage, clamped, label, score_cell, table
from clew.runs.records import Record
from clew.runs.scores import Score
from clew.runs.summary import Summary, summarize


def write_report(run: Run) -> Path:
    """Write the page and return where it is."""
    summary, evaluations = summarize(run), run.evaluations()
    page, text = HtmlPage(summary.name), failure_report(run)
    page.header(summary.state, _facts(summary), _notes(run, summary, text))
    if text is not None:
        page.section("What happened", _failure_section(text))
    _add_tiles(page, evaluations)
    page.section("Quality", _scores(evaluations))
    page.section("Training", figures=list(training_figures.training_figures(run).values()))
    page.section("Workers", *async_workers.report_section(run))
    for name in evaluations:
        for task, drawn in _by_task(run.plots / name).items():
            page.section(f"Evaluation: {name}{f', {task}' if task else ''}", figures=drawn)
    page.section("To do it again", _details(run, summary))
    return page.write(run.report_file)


def _facts(summary: Summary) -> list[str]:
    return [
        f"recipe <b>{escape(Path(summary.recipe).stem)}</b>" if summary.recipe else "a loop of one's own",
        escape(f"{summary.epochs_done}{f' of {summary.epochs}' if summary.epochs else ''} epochs"),
        escape(f"{summary.workers} worker{'s' if summary.workers != 1 else ''}"),
        *([f"on {escape(summary.device)}"] if summary.device else []),
        f"{summary.parameters:,} parameters",
        f"{summary.times.samples_per_second:,.0f} samples/s",
        *([f"{per_epoch:.3g} s per epoch"] if (per_epoch := summary.times.seconds_per_epoch) is not None else []),
        f"{summary.seconds:.0f} s",
    ]


def _notes(run: Run, summary: Summary, text: FailureReport | None) -> Iterator[str]:
    """What a reader must know before the rest."""
    if text is None and summary.message:
        yield escape(summary.message)
    if text is None and (missing := run.missing_ranks()):
        yield f"No records of rank {', '.join(map(str, missing))}: what is shown is that of the others."
    if summary.state in ("created", "running"):
        now = datetime.datetime.now().strftime("%Y-%m-%d %H:%M:%S")
        yield f"Still being written: this is how it stood at {now}. <code>clew runs report</code> makes the page anew."


def _failure_section(text: FailureReport) -> str:
    facts = table((), [(escape(name), escape(value)) for name, value in text.facts.items()])
    rows = [
        (
            f"{line.seconds:+.2f} s",
            str(line.rank),
            escape(line.kind),
            f'<span class="words">{escape(line.text)}</span>',
        )
        for line in text.last
    ]
    last = table(("since start", "rank", "record", ""), rows)
    head = f"The last {len(rows)} records of all ranks"
    shown = f"<details open><summary>{head}</summary>{last}</details>" if rows else ""
    return f'<div class="note bad">{clamped(escape(text.message))}</div>{facts}{shown}'


def _add_tiles(page: HtmlPage, evaluations: dict[str, Record]) -> None:
    """Add the first numbers of the first evaluation, large."""
    if not evaluations:
        page.add('<p class="soft">Not evaluated yet: <code>clew evaluate RUN</code> adds physics figures here.</p>')
        return
    name, record = next(iter(evaluations.items()))
    tiles = {}
    for metric, entry in list(_plain(record["metrics"]).items())[:5]:
        each = Score.read(entry)
        error = f" <small>{each.error_text}</small>" if each.error_text else ""
        tiles[label(metric)] = f"<b>{each.value_text}</b>{error}"
    page.tiles(tiles)
    page.add(f'<p class="soft">{escape(name)}: {record["events"]:,} events from {escape(record["data"])}</p>')


def _scores(evaluations: dict[str, Record]) -> str:
    """Every metric of every evaluation, side by side."""
    if not evaluations:
        return ""
    names = list(dict.fromkeys(name for record in evaluations.values() for name in _plain(record["metrics"])))
    head = [f"{escape(name)}<br><small>{r['events']:,} events</small>" for name, r in evaluations.items()]
    rows = [
        (label(name), *(score_cell(Score.read(r["metrics"].get(name))) for r in evaluations.values())) for name in names
    ]
    return table(("", *head), rows)


def _plain(metrics: dict[str, Any]) -> dict[str, Any]:
    """Metrics that have a value, the loss last."""
    present = {name: entry for name, entry in metrics.items() if entry["value"] is not None}
    return {
        **{n: e for n, e in present.items() if n != "loss"},
        **({"loss": present["loss"]} if "loss" in present else {}),
    }


def _by_task(folder: Path) -> dict[str, list[Figure]]:
    """The figures of an evaluation; those of metrics called `task/metric` by task, the others first."""
    result: dict[str, list[Figure]] = {}
    for path in sorted(folder.glob("*.json")):
        drawn = json.loads(path.read_text())
        result.setdefault(drawn["layout"].get("meta", {}).get("task", ""), []).append(drawn)
    return dict(sorted(result.items(), key=lambda item: item[0] != ""))


def _details(run: Run, summary: Summary) -> str:
    rows = [(escape(str(name)), escape(_text(value))) for name, value in run.environment().items()]
    config = escape(run.config_file.read_text())
    parts = [f"<details><summary>Settings</summary><pre>{config}</pre></details>"]
    parts.append(f"<details><summary>Environment</summary>{table((), rows)}</details>")
    if run.dataset_file.exists():
        manifest = json.loads(run.dataset_file.read_text())
        parts.append(f"<details><summary>Dataset</summary>{_dataset(manifest)}</details>")
    facts = [f"{escape(name)} {share:.1%}" for name, share in summary.times.shares.items()]
    load = summary.times.load_seconds
    facts += [f"before that, {load:.3g} s to load the samples"] if facts and load is not None else []
    time = f'<p class="soft">Time of rank 0: {", ".join(facts)}</p>' if facts else ""
    return f"{time}{''.join(parts)}"


def _dataset(manifest: dict[str, Any]) -> str:
    splits = {name: sum(shard["events"] for shard in shards) for name, shards in manifest["splits"].items()}
    inputs = [
        (escape(i["name"]), f"{i['events']:,} events", f"<code>{escape(str(i['sha256'])[:12])}</code>")
        for i in manifest["inputs"]
    ]
    text = escape(", ".join(f"{name} {count:,}" for name, count in splits.items()))
    return f"<p>{text} samples; key <code>{escape(str(manifest['key'])[:16])}</code></p>{table((), inputs)}"


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {version}" for name, version in value.items())
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
