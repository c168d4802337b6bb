"""One run has one speed, one time per epoch, one load time and one data wait, in every view of it."""

from __future__ import annotations

import html
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict

import pytest
from typer.testing import CliRunner

from clew import Client, Run
from clew.cli.main import app
from clew.runs.listing import list_run
from clew.runs.report import write_report
from clew.runs.summary import summarize
from clew.runs.times import RunTimes, time_figures
from clew.server.dashboard.formatting import duration, percent, short
from tests.server.conftest import Live
from tests.server.dashboard.test_pages import logged_in


@pytest.fixture(scope="module")
def run(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A real run that is not the one that other tests push."""
    copy = Run.open(shutil.copytree(run.path, tmp_path_factory.mktemp("times") / "one-speed"))
    stream = copy.records_folder / "rank-0.jsonl"
    stream.write_text(re.sub(r'"uid": "\w+"', '"uid": "0123456789abcdef"', stream.read_text(), count=1))
    return copy


@pytest.fixture(scope="module")
def number(shared_server: Live, run: Run) -> Iterator[int]:
    with Client(shared_server.url, shared_server.token) as client:
        yield client.runs.push(run.path).id


@pytest.fixture(scope="module")
def times(run: Run) -> RunTimes:
    return summarize(run).times


def words(page: str) -> str:
    """The text of a page, without its tags."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


def test_records_lists_and_job_metadata_agree(run: Run, times: RunTimes) -> None:
    assert times.samples_per_second > 0 and times.seconds_per_epoch and times.load_seconds
    assert RunTimes.read(run.last("validation") or {}) == list_run(run).times == times
    assert {name: value for name, value in time_figures(run).items() if name != "epoch_seconds"} == asdict(times)


def test_the_command_line_agrees(run: Run, times: RunTimes) -> None:
    listed = CliRunner().invoke(app, ["runs", "list", str(run.path.parent), "--json"])
    assert [each["times"] for each in json.loads(listed.output)] == [asdict(times)]
    shown = " ".join(CliRunner().invoke(app, ["runs", "show", str(run.path)]).output.split())
    assert f"samples/s {times.samples_per_second:,.0f}" in shown
    assert f"time per epoch {times.seconds_per_epoch:.3g} s load time {times.load_seconds:.3g} s" in shown
    assert f"data wait {times.data_wait_seconds:.3g} s" in shown
    assert ", ".join(f"{name} {share:.1%}" for name, share in times.shares.items()) in shown


def test_the_report_agrees(run: Run, times: RunTimes) -> None:
    page = words(write_report(run).read_text())
    assert f"{times.samples_per_second:,.0f} samples/s" in page and f"{times.seconds_per_epoch:.3g} s per epoch" in page
    assert ", ".join(f"{name} {share:.1%}" for name, share in times.shares.items()) in page


def test_the_api_agrees(shared_server: Live, number: int, run: Run, times: RunTimes) -> None:
    with Client(shared_server.url, shared_server.token) as client:
        info = client.runs.get(number)
    assert info.times == times and info.samples_per_second == times.samples_per_second
    with shared_server.client() as http:
        curve = http.get(f"/api/v1/runs/{number}/metrics/speed/epoch_seconds").json()
    assert curve["last"] == pytest.approx(time_figures(run)["epoch_seconds"])


def test_the_dashboard_agrees(shared_server: Live, number: int, times: RunTimes) -> None:
    with logged_in(shared_server, shared_server.token) as browser:
        curves, system = (words(browser.get(f"/runs/{number}{tab}").text) for tab in ("", "/system"))
        listed = words(browser.get("/runs").text)
    assert f"speed {short(times.samples_per_second)} samples/s" in curves
    assert f"time per epoch {duration(times.seconds_per_epoch)}" in curves
    assert f"load time {duration(times.load_seconds)}" in curves
    assert f"data wait {percent(times.shares['data wait'])} of the time" in curves
    assert all(f"{name} {percent(share)}" in system for name, share in times.shares.items())
    assert short(times.samples_per_second) in listed
