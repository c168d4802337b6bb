"""The steps of a user, from login to report: a real server with its own agent, a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import clew
from clew.data.prepare.generate import generate
from clew.jobs.launchers.launcher import LaunchedJob
from clew.jobs.launchers.local import LocalLauncher
from clew.recipe import find
from tests.server.conftest import Live
from tests.server.dashboard.conftest import Visitor

_POINTS = (
    "() => Math.max(0, ...[...document.querySelectorAll('.js-plotly-plot')].flatMap(p => p.data.map(t => t.x.length)))"
)


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """A few hundred prepared events."""
    generate(find("tracking")(), 300, 1, tmp_path / "events", workers=1)
    clew.prepare("tracking", input=[str(tmp_path / "events")], output=str(tmp_path / "dataset"), workers=1)
    return tmp_path / "dataset"


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Live]:
    """`clew serve` with its local agent."""
    live = Live(tmp_path / "service", options=()).start()
    yield live
    live.stop()
    for attempt in (tmp_path / "service" / "agent" / "jobs").glob("*/attempt-*"):
        LocalLauncher().kill(
            LaunchedJob("local", "", str(attempt))
        )  # jobs outlive the server; those of a test do not outlive it


def submit(visitor: Visitor, dataset: Path, name: str, **settings: str) -> str:
    """Fill in the form and send it; return the address of the job."""
    page = visitor.open("/submit")
    page.fill("[name='job.name']", name)
    page.fill("[name='job.dataset']", str(dataset))
    for key, value in settings.items():
        field = page.locator(f"[name='{key.replace('__', '.')}']")
        field.evaluate("box => { for (let up = box; up; up = up.parentElement) if (up.open === false) up.open = true }")
        field.fill(value)
    first = next(iter(settings)).rpartition("__")[2]
    page.wait_for_function("word => document.getElementById('yaml').value.includes(word)", arg=f"{first}: ")
    page.click("form#submit button.main")
    page.wait_for_url("**/jobs/*")
    return str(page.url)


def open_run(visitor: Visitor, job: str) -> str:
    """Go from the page of a job to the page of its run, when it exists."""
    visitor.page.goto(job)
    visitor.page.click(".actions a.button.main")
    visitor.page.wait_for_url("**/runs/*")
    return str(visitor.page.url)


def drawn(page: Any) -> int:
    """Points of the longest curve on a page."""
    return int(page.evaluate(_POINTS))


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_user_submits_watches_compares_cancels_and_reads(browser: Any, alone: Live, dataset: Path) -> None:
    visitor = Visitor(browser, alone, alone.token)
    page = visitor.page
    page.on("dialog", lambda dialog: dialog.accept())

    long = submit(visitor, dataset, "long", train__epochs="100000", train__log_every="20", train__optimizer__lr="0.001")
    run = open_run(visitor, long)
    page.wait_for_function(f"() => ({_POINTS})() > 2")
    before = drawn(page)
    page.wait_for_function(f"before => ({_POINTS})() > before + 3", arg=before)  # the curve grows without a reload

    short = submit(visitor, dataset, "short", train__epochs="6", train__log_every="1")
    other = open_run(visitor, short)
    page.wait_for_function(f"() => ({_POINTS})() > 2")

    visitor.open("/runs")
    for address in (run, other):
        page.check(f"input[name=run][value='{address.rpartition('/')[2]}']")
    page.click("text=Compare >> visible=true")
    page.wait_for_function(f"() => ({_POINTS})() > 2")
    assert "2 runs compared" in page.inner_text("h1")
    assert {"train.epochs", "train.optimizer.lr"} <= set(page.locator("table td:first-child").all_inner_texts())
    names = page.evaluate("() => document.querySelector('.js-plotly-plot').data.map(t => t.name)")
    assert {"long", "short"} <= set(names)

    page.goto(long)
    page.click("button:has-text('Cancel')")
    page.wait_for_selector("h1 .state.cancelled")

    page.goto(short)
    page.wait_for_selector("h1 .state.done")
    assert "epoch" in page.inner_text("[data-log]")
    page.goto(other)
    page.click("text=Report")
    report = page.frame_locator("iframe")
    report.locator(".js-plotly-plot").first.wait_for()
    assert "short" in report.locator("h1").inner_text()
    inside = next(frame for frame in page.frames if frame != page.main_frame)
    assert (
        inside.evaluate("() => { try { return document.cookie } catch (error) { return error.name } }")
        == "SecurityError"
    )
    assert visitor.faults == []
    visitor.context.close()
