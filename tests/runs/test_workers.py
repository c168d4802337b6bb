"""The workers of an asynchronous training in the report and in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clew.runs import Run
from clew.runs.async_workers import load_workers, summary_lines, worker_figures
from tests.cli import done
from tests.runs import end, plan, start, training, written
from tests.runs.test_report import EVIL, Page


def record(**more: Any) -> dict[str, Any]:
    """The record of a master about two workers, one of them half as fast."""
    fast = {"host": "a", "batches": 30, "samples": 3000, "seconds": 10.0, "wait": 1.0, "communicate": 4.0}
    slow = {**fast, "host": "b", "batches": 15, "samples": 1500, "communicate": 7.0}
    facts = {"staleness": {"10": 5, "0": 30, "1": 10}, "bytes": 450_000_000, "returned": 3}
    return {"kind": "workers", "epoch": 3, "step": 12, "workers": {"1": fast, "2": slow}, **facts, **more}


def run_with(path: Path, *facts: dict[str, Any]) -> Run:
    return written(path, start(), plan(), *training(), *facts, end())


def test_the_newest_record_counts(tmp_path: Path) -> None:
    workers = load_workers(run_with(tmp_path / "run", record(returned=0), record()))
    assert workers is not None
    assert [each.speed for each in workers.workers] == [300, 150]
    assert workers.workers[0].shares == pytest.approx({"compute": 0.5, "communicate": 0.4, "data wait": 0.1})
    assert (workers.returned, workers.updates, list(workers.staleness)) == (3, 45, [0, 1, 10])
    assert workers.mean_staleness == pytest.approx(60 / 45)


def test_a_worker_that_did_nothing_has_no_speed(tmp_path: Path) -> None:
    nothing = {"host": "a", "batches": 0, "samples": 0, "seconds": 0.0, "wait": 0.0, "communicate": 0.0}
    workers = load_workers(run_with(tmp_path / "run", record(workers={"1": nothing}, staleness={})))
    assert workers is not None and workers.workers[0].speed == 0 and set(workers.workers[0].shares.values()) == {0.0}
    assert dict(summary_lines(workers))["exchanged"].startswith("0 updates")
    assert worker_figures(workers)[1]["data"][0]["x"] == []


def test_the_report_has_a_section_with_table_and_figures(tmp_path: Path) -> None:
    page = Page(run_with(tmp_path / "run", record()))
    for words in ("45 updates, mean staleness 1.33", "450.0 MB moved", "3 batches returned", "worker 2", "150"):
        assert words in page.text
    shares, staleness = page.figures[-2:]
    assert [trace["name"] for trace in shares["data"]] == ["compute", "communicate and wait", "data wait"]
    assert [sum(trace["x"][number] for trace in shares["data"]) for number in (0, 1)] == pytest.approx([100, 100])
    assert staleness["data"][0]["y"] == [30, 10, 5]
    assert "Where the time went" not in [drawn["layout"]["title"]["text"] for drawn in page.figures]


def test_notes_of_the_master_are_listed_as_they_are(tmp_path: Path) -> None:
    page = Page(run_with(tmp_path / "run", {"kind": "note", "message": f"worker 7 is gone: {EVIL}"}, record()))
    assert f"worker 7 is gone: {EVIL}" in page.text
    assert "1 note of the master" in page.text


def test_a_run_without_a_master_has_no_such_section(tmp_path: Path) -> None:
    run = run_with(tmp_path / "run")
    page = Page(run)
    assert load_workers(run) is None
    assert "Workers" not in page.text
    assert "Where the time went" in [drawn["layout"]["title"]["text"] for drawn in page.figures]


def test_a_terminal_gets_two_lines(tmp_path: Path) -> None:
    run = run_with(tmp_path / "run", record())
    assert "mean staleness 1.33" in " ".join(done("runs", "show", run.path).split())
    workers = load_workers(run)
    assert workers is not None
    assert dict(summary_lines(workers)) == {
        "each worker": "150 to 300 samples/s (2 on 2 hosts), compute 35%, communicate 55%, data wait 10%",
        "exchanged": "45 updates, mean staleness 1.33, 450.0 MB, 3 batches returned",
    }
