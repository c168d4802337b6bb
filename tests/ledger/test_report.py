"""The report: one file that needs nothing else, whatever state the run is in and whatever its names hold."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from clew import figure
from clew.ledger import Run
from clew.ledger.report import write_report
from tests.ledger import begin, fresh

EVIL = "</script><b>bold</b><!--<script>"


class Page(HTMLParser):
    """A report as a browser's parser sees it: the tags, the text outside scripts, the figures."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.scripts: list[str] = []
        self.styles = ""
        self.feed(write_report(run).read_text(encoding="utf-8"))
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.cdata_elem is None:
            self.text += data
        elif self.cdata_elem == "script":
            self.scripts.append(data)
        else:
            self.styles += data

    @property
    def figures(self) -> list[dict[str, Any]]:
        """The figures, each of which has a place on the page."""
        drawn: list[dict[str, Any]] = json.loads(next(text for text in self.scripts if text.startswith("[")))
        places = [int(facts["data-figure"] or "") for _, facts in self.tags if "data-figure" in facts]
        assert places == list(range(len(drawn)))
        return drawn


@pytest.fixture(scope="module")
def page(run: Run) -> Page:
    """The report of the session's trained and evaluated run."""
    return Page(run)


def test_the_report_of_a_finished_run_holds_its_numbers(run: Run, page: Page) -> None:
    metrics = run.evaluations()["test"]["metrics"]
    for name in ("efficiency", "purity", "loss"):
        assert f"{metrics[name]['value']:.4f}" in page.text
    plan = run.last("plan")
    assert plan is not None
    assert f"{plan['parameters']:,} parameters" in page.text
    assert "tracking-001 finished" in page.text
    assert "hidden: 16" in page.text


def test_the_report_loads_nothing(page: Page) -> None:
    for tag, facts in page.tags:
        assert tag not in ("link", "img", "iframe", "object", "base")
        assert not facts.keys() & {"src", "href", "srcset"}, tag
    assert page.styles
    assert "@import" not in page.styles
    assert "url(" not in page.styles


def test_the_report_carries_its_plotting_code(page: Page) -> None:
    assert any(text.lstrip().startswith("/**\n* plotly.js") for text in page.scripts)


def test_the_figures_are_the_curves_and_those_of_the_evaluation(run: Run, page: Page) -> None:
    titles = [drawn["layout"]["title"]["text"] for drawn in page.figures]
    assert titles[:2] == ["Loss", "Validation"]
    assert len(titles) == 5 + len(list((run.plots / "test").glob("*.json")))
    assert any(title.startswith("event ") for title in titles)


def test_a_run_without_evaluation_says_what_is_missing(run_copy: Run) -> None:
    (run_copy.records_folder / "evaluate.jsonl").unlink()
    page = Page(run_copy)
    assert "Not evaluated yet" in page.text
    assert len(page.figures) == 5


def test_a_run_with_no_step_yet_has_a_report(tmp_path: Path) -> None:
    page = Page(fresh(tmp_path / "run"))
    assert "run created" in page.text
    assert "0 of 3 epochs" in page.text
    assert page.figures == []


def test_a_failed_run_says_why(tmp_path: Path) -> None:
    run = fresh(tmp_path / "run")
    with run.writer("rank-0") as writer:
        begin(writer)
        writer.write("end", status="failed", message="the loss is nan at step 3")
    page = Page(run)
    assert "run failed" in page.text
    assert "the loss is nan at step 3" in page.text


def test_a_run_cut_between_two_records_has_a_report(run_copy: Run) -> None:
    stream = run_copy.records_folder / "rank-0.jsonl"
    kept = [line for line in stream.read_text().splitlines() if '"kind": "validation"' not in line]
    stream.write_text("\n".join(kept[:4]) + '\n{"seq": 4, "ki')
    page = Page(run_copy)
    assert [drawn["layout"]["title"]["text"] for drawn in page.figures][:1] == ["Loss"]


def test_a_message_is_shown_as_it_is(tmp_path: Path) -> None:
    run = fresh(tmp_path / "<b>run")
    with run.writer("rank-0") as writer:
        begin(writer)
        writer.write("end", status="failed", message=EVIL)
    page = Page(run)
    assert EVIL in page.text
    assert "<b>run" in page.text
    assert page.figures == []


def test_names_and_titles_are_shown_as_they_are(run_copy: Run) -> None:
    entry = {"value": 0.5, "error": None}
    with run_copy.writer("evaluate") as writer:
        facts = {"data": EVIL, "events": 1, "metrics": {EVIL: entry}, "seconds": 1.0, "checkpoint": "best"}
        writer.write("evaluation", name="<b>odd", **facts)
    folder = run_copy.plots / "<b>odd"
    folder.mkdir()
    (folder / "a.json").write_text(json.dumps(figure.figure([], title=EVIL)))
    page = Page(run_copy)
    assert page.text.count(EVIL) == 1  # the metric; the data is told of the first evaluation only
    assert page.text.count("<b>odd") == 2
    assert page.figures[-1]["layout"]["title"]["text"] == EVIL


def test_no_text_can_end_the_script_that_holds_the_figures(run_copy: Run) -> None:
    drawn = next(iter((run_copy.plots / "test").glob("*.json")))
    drawn.write_text(json.dumps(figure.figure([], title=EVIL)))
    text = write_report(run_copy).read_text()
    held = text.partition('id="figures">')[2].partition("</script>")[0]
    assert "<" not in held
    assert EVIL in [item["layout"]["title"]["text"] for item in json.loads(held)]
