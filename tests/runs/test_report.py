"""The report: one self-contained file, for any state of the run and any text in its names."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from clew import figure
from clew.runs import Run
from clew.runs.report import write_report
from clew.runs.scores import Score
from tests.runs import begin, end, fresh, lines, plan, start, training, written

EVIL = "</script><b>bold</b><!--<script>"


class Page(HTMLParser):
    """A report as an HTML parser sees it: the tags, the text outside scripts, the figures."""

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
        assert Score.read(metrics[name]).text in page.text
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
    assert any(text.startswith("/* plotly.js") for text in page.scripts)


def test_the_figures_are_the_curves_and_those_of_the_evaluation(run: Run, page: Page) -> None:
    titles = [drawn["layout"]["title"]["text"] for drawn in page.figures]
    assert titles[:2] == ["Loss", "Validation"]
    assert len(titles) - ("Cores in use" in titles) == 5 + len(list((run.plots / "test").glob("*.json")))
    assert any(title.startswith("event ") for title in titles)


def test_a_run_without_evaluation_says_what_is_missing(run_copy: Run) -> None:
    (run_copy.records_folder / "evaluate.jsonl").unlink()
    page = Page(run_copy)
    assert "Not evaluated yet" in page.text
    assert len(page.figures) in (5, 6)  # cores in use are shown if the run took long enough


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


def test_the_report_of_a_failed_run_shows_its_history(tmp_path: Path) -> None:
    run = written(tmp_path / "run", start(ranks=2), plan(), *training(9), end("failed", "lost rank 1"))
    facts = [start(rank=1, ranks=2), *training(9)[:-2], end("failed", "the loss is nan")]
    (run.records_folder / "rank-1.jsonl").write_text(lines(facts))
    run.bad_batch(36, 1).touch()
    run.state_file(32).touch()
    page = Page(run)
    assert "What happened" in page.text
    for text in (
        "lost rank 1",
        "failed first" + "rank 1",
        "step 36, epoch 9: loss 0.02778",
        "bad-batch-step-36-rank-1.h5",
    ):
        assert text in page.text
    assert "step-000000032.pt, with: clew train --resume" in page.text
    assert "The last 20 records of all ranks" in page.text
    assert "failed: the loss is nan" in page.text
    assert len(page.figures) == 4


def test_the_report_of_a_killed_run_says_that_it_has_no_end(tmp_path: Path) -> None:
    page = Page(written(tmp_path / "run", start(), plan(), *training(1)))
    assert "run interrupted" in page.text
    assert "it ended without a message: killed, out of memory" in page.text
    assert "ended without a message" + "rank 0" in page.text


@pytest.mark.parametrize("rank", [0, 1])
def test_a_run_without_the_records_of_a_rank_has_a_report(tmp_path: Path, rank: int) -> None:
    run = written(tmp_path / "run")
    for number in (0, 1):
        facts = [start(rank=number, ranks=2), plan(), *training(2), end()]
        (run.records_folder / f"rank-{number}.jsonl").write_text(lines(facts))
    (run.records_folder / f"rank-{rank}.jsonl").unlink()
    page = Page(run)
    assert "run finished" in page.text
    assert f"No records of rank {rank}" in page.text
    assert page.figures[3]["data"][0]["y"] == [f"rank-{1 - rank}"]


def test_a_run_being_written_says_when_it_stood_so(tmp_path: Path) -> None:
    run = fresh(tmp_path / "run")
    with run.writer("rank-0") as writer:
        begin(writer)
    with (run.records_folder / "rank-0.jsonl").open("a") as stream:
        stream.write('{"seq": 1, "ki')
    page = Page(run)
    assert "run running" in page.text
    assert "Still being written" in page.text


def test_a_user_defined_loop_is_drawn_by_steps(tmp_path: Path) -> None:
    steps = training(2)
    steps[0]["loss"] = {"discriminator": 1.0}
    page = Page(written(tmp_path / "run", start(), *steps, end(), recipe=""))
    loss = page.figures[0]
    assert loss["layout"]["xaxis"]["title"]["text"] == "step"
    assert [trace["name"] for trace in loss["data"]] == ["discriminator", "train", "validation"]
    assert loss["data"][1]["y"][0] is None


def test_figures_of_an_evaluation_stand_by_task(run_copy: Run) -> None:
    folder = run_copy.plots / "test"
    for name, task in {"98-a": "flavour", "99-b": "flavour"}.items():
        drawn = figure.figure([], title=name, meta={"task": task})
        (folder / f"{name}.json").write_text(json.dumps(drawn))
    page = Page(run_copy)
    assert page.text.count("Evaluation: test, flavour") == 1
    assert [drawn["layout"]["title"]["text"] for drawn in page.figures][-2:] == ["98-a", "99-b"]


def test_a_run_cut_between_two_records_has_a_report(run_copy: Run) -> None:
    stream = run_copy.records_folder / "rank-0.jsonl"
    lines = [line for line in stream.read_text().splitlines() if '"kind": "validation"' not in line]
    stream.write_text("\n".join(lines[:4]) + '\n{"seq": 4, "ki')
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
    assert page.text.count(EVIL) == 2  # the metric and the plot; the data is shown for the first evaluation only
    assert page.text.count("<b>odd") == 2
    assert page.figures[-1]["layout"]["title"]["text"] == EVIL


def test_no_text_can_end_the_script_that_holds_the_figures(run_copy: Run) -> None:
    drawn = next(iter((run_copy.plots / "test").glob("*.json")))
    drawn.write_text(json.dumps(figure.figure([], title=EVIL)))
    text = write_report(run_copy).read_text()
    held = text.partition('id="figures">')[2].partition("</script>")[0]
    assert "<" not in held
    assert EVIL in [item["layout"]["title"]["text"] for item in json.loads(held)]
