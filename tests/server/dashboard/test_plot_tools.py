"""Plots of runs in a browser: tools whose state is in the link, comparison, brushing, studies, phone, first start."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from clew.cli.bench.sending import send_result
from tests.server.conftest import Live
from tests.server.dashboard.conftest import Visitor
from tests.server.test_records import make, send, start, step

_DRAWN = "() => document.querySelector('[data-curves]').data?.length"


def scan(client: httpx.Client, name: str, rate: float = 0.01, metrics: int = 2) -> int:
    """A run of four epochs with settings, validations and many metrics."""
    body = {"uid": name, "name": name, "recipe": "tracking", "config": {"train": {"optimizer": {"lr": rate}}}}
    run = int(client.post("/api/v1/runs", json=body).json()["id"])
    plan = {"seq": 1, "time": 1001.0, "kind": "plan", "epochs": 4, "steps": 40, "samples": 2560, "device": "cpu"}
    records: list[dict[str, Any]] = [start(), plan]
    for number in range(1, 41):
        records.append(step(len(records), number, loss=2 / number + (number % 2) * 0.2 + rate))
        if number % 10 == 0:
            values = {"loss": 2 / number + rate, **{f"part_{place:02d}": place * number for place in range(metrics)}}
            facts = {"epoch": number // 10 - 1, "step": number, "metrics": values, "seconds": 0.1}
            records.append({"seq": len(records), "time": 1000.0 + len(records), "kind": "validation", **facts})
    send(client, run, *records)
    return run


def first(page: Any, part: str) -> Any:
    """A part of the first plot."""
    return page.evaluate(f"() => document.querySelector('[data-curves]').{part}")


def test_the_tools_of_plots_are_kept_in_the_link(visitor: Visitor, client: httpx.Client) -> None:
    run = scan(client, "with-tools", metrics=30)
    page = visitor.open(f"/runs/{run}")
    page.wait_for_function(f"() => ({_DRAWN})() > 0")
    assert page.locator("figure[data-metrics]:visible").count() == 12  # of many plots the first ones
    page.select_option("[data-tool=x]", "epoch")
    page.wait_for_function("() => document.querySelector('[data-curves]').layout.xaxis.title.text === 'epoch'")
    assert max(first(page, "data[0].x")) == 4.0
    page.select_option("[data-tool=x]", "samples")
    page.wait_for_function("() => document.querySelector('[data-curves]').layout.xaxis.title.text === 'samples'")
    assert max(first(page, "data[0].x")) == 40 * 64
    plain = first(page, "data.length")
    page.fill("[data-tool=smooth]", "0.9")
    page.wait_for_function(f"() => ({_DRAWN})() === {2 * plain}")  # the curve itself stays, pale
    page.select_option("[data-tool=y]", "linear")
    assert first(page, "layout.yaxis.type") == "linear"
    page.fill("[data-tool=metrics]", "part_07")
    assert page.locator("figure[data-metrics]:visible").count() == 1
    again = visitor.context.new_page()
    again.goto(page.url)
    assert again.input_value("[data-tool=smooth]") == "0.9" and again.input_value("[data-tool=y]") == "linear"
    assert again.locator("figure[data-metrics]:visible").count() == 1
    assert visitor.faults == []


def test_plots_share_a_cursor_and_are_saved(visitor: Visitor, client: httpx.Client) -> None:
    page = visitor.open(f"/runs/{scan(client, 'saved-plots')}")
    page.wait_for_function("() => [...document.querySelectorAll('[data-curves]')].every(each => each.data)")
    where = page.locator("[data-curves]").first.bounding_box()
    for shift in (0, 3):  # the first move enters the plot
        page.mouse.move(where["x"] + where["width"] / 2 + shift, where["y"] + 100)
        page.wait_for_timeout(150)
    hovered = "[...document.querySelectorAll('[data-curves]')].filter(place => place.querySelector('.hoverlayer > *'))"
    shown = f"() => {hovered}.length"
    page.wait_for_function(f"() => ({shown})() > 1")
    for kind, beginning in (("png", b"\x89PNG"), ("svg", b"<svg"), ("csv", b"run,metric,step,time,value\n")):
        page.locator("figure .save summary").first.click()
        with page.expect_download() as saved:
            page.locator(f"figure [data-save={kind}]").first.click()
        assert Path(saved.value.path()).read_bytes().startswith(beginning)
        assert saved.value.suggested_filename == f"saved-plots-Loss.{kind}"
    assert visitor.faults == []


def test_runs_are_compared_grouped_and_brushed(visitor: Visitor, client: httpx.Client) -> None:
    runs = [scan(client, f"side-{place}", rate) for place, rate in enumerate((0.01, 0.01, 0.1, 0.3))]
    page = visitor.open("/compare?" + "&".join(f"run={run}" for run in runs))
    assert page.locator("main section h2").first.inner_text() == "Settings that differ"
    page.wait_for_function(f"() => ({_DRAWN})() === 4")
    page.select_option("[data-tool=group]", "train.optimizer.lr")
    page.wait_for_function(f"() => ({_DRAWN})() === 9")  # a mean and two edges for each of three groups
    assert "train.optimizer.lr = 0.01 (2)" in first(page, "data.map(each => each.name)")
    page = visitor.open("/explore?q=side-")
    page.wait_for_selector("[data-scatter] .scatterlayer path", state="attached")
    assert page.inner_text("[data-count]") == "4 runs"
    axis = page.locator("g[data-column='train.optimizer.lr'] .grip").bounding_box()
    page.mouse.move(axis["x"] + 14, axis["y"] + 4)
    page.mouse.down()
    page.mouse.move(axis["x"] + 14, axis["y"] + axis["height"] * 0.45)
    page.mouse.up()
    count = int(page.inner_text("[data-count]").split()[0])
    assert 0 < count < 4 and page.locator("svg.parallel path.on").count() == count
    seen = page.evaluate("() => document.querySelector('[data-scatter]').data[0].marker.opacity.filter(x => x > 0.5)")
    assert len(seen) == count
    again = visitor.context.new_page()
    again.goto(page.url)
    assert again.inner_text("[data-count]").startswith(f"{count} of 4")
    assert visitor.faults == []


def test_lines_stay_between_the_ends_of_their_axes(visitor: Visitor, client: httpx.Client) -> None:
    rows = ((2, "null"), (20, "a"), (None, 7.5))  # a number or nothing; texts and a number
    for place, (every, kind) in enumerate(rows):
        name = f"axes-{place}"
        config = {"train": {"log_every": every, "kind": kind}}
        client.post("/api/v1/runs", json={"uid": name, "name": name, "config": config})
    page = visitor.open("/explore?q=axes-")
    page.wait_for_selector("svg.parallel path", state="attached")
    low, high = page.evaluate("""() => {
      const axis = document.querySelector("svg.parallel .grip").getBBox();
      const boxes = [...document.querySelectorAll("svg.parallel path")].map(each => each.getBBox());
      return [Math.min(...boxes.map(each => each.y)) - axis.y,
              axis.y + axis.height - Math.max(...boxes.map(each => each.y + each.height))];
    }""")
    assert low >= 0 and high >= 0 and visitor.faults == []


def test_a_study_sorts_its_trials_and_trains_the_best_on(visitor: Visitor, client: httpx.Client) -> None:
    space = {"train.optimizer.lr": {"log": [1e-4, 0.1]}, "model.hidden": {"uniform": [8, 64], "integer": True}}
    body = {"name": "sorted", "tune": {"space": space, "objective": "val/loss", "trials": 8}, "external": True}
    number = client.post("/api/v1/studies", json=body).json()["id"]
    config = {"recipe": "tracking", "train": {"dataset": "/data/x", "epochs": 5, "optimizer": {"lr": 0.5}}}
    body = {"uid": "best-trial", "name": "trial-0003", "recipe": "tracking", "study": number, "trial": 3}
    run = client.post("/api/v1/runs", json={**body, "config": config}).json()["id"]
    trials = []
    for place in range(8):
        settings = {"train.optimizer.lr": 1e-3 * (place + 1), "model.hidden": 10 + (5 * place) % 40}
        facts = {"seconds": 2.0, "attempts": 1, "started": time.time(), "run": "trial-0003", "reason": ""}
        value = abs(place - 3) + 0.1
        reports = {"1": value + 1, "2": value}
        trials.append(
            {"number": place, "state": "complete", "settings": settings, "values": [value], "reports": reports, **facts}
        )
    assert client.put(f"/api/v1/studies/{number}/trials", json={"trials": trials}).status_code == 204
    page = visitor.open(f"/studies/{number}")
    page.click("table[data-sortable] th:nth-child(3) button")
    assert page.inner_text("table[data-sortable] tbody tr:first-child td:first-child") == "3"
    page.reload()
    assert page.inner_text("table[data-sortable] tbody tr:first-child td:first-child") == "3"
    page.wait_for_function("() => [...document.querySelectorAll('[data-figure]')].every(each => each.data)")
    kinds = page.evaluate("() => [...document.querySelectorAll('[data-figure]')].flatMap(p => p.data.map(t => t.type))")
    titles = page.locator("figure h2").all_inner_texts()
    assert "contour" in kinds and {"History", "All trials"} <= set(titles)
    assert "best so far" in page.evaluate("() => document.querySelector('[data-figure]').data.map(each => each.name)")
    assert page.locator(f"table[data-sortable] a[href='/runs/{run}']").count() >= 1
    page.click("text=Train the best on more epochs")
    page.wait_for_url("**/submit?study=*")
    fields = {name: page.input_value(f"[name='{name}']") for name in ("train.epochs", "train.optimizer.lr")}
    assert fields == {"train.epochs": "20", "train.optimizer.lr": "0.004"}
    assert page.input_value("[name='job.dataset']") == "/data/x" and visitor.faults == []


@pytest.mark.parametrize("path", ["/", "/runs", "/jobs", "/submit", "/benchmarks", "/datasets", "/accounts"])
def test_a_phone_has_a_menu_and_no_page_is_wider_than_it(visitor: Visitor, client: httpx.Client, path: str) -> None:
    make(client, "for-the-phone")
    visitor.page.set_viewport_size({"width": 390, "height": 844})
    page = visitor.open(path)
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 390
    assert not page.locator("nav a[href='/studies']").is_visible()
    page.click("[data-menu]")
    assert page.locator("nav a[href='/studies']").is_visible()
    page.click("[data-menu]")
    box = page.locator("form#submit button.main" if path == "/submit" else ".side .button.main").bounding_box()
    assert box["y"] + box["height"] <= 844  # on the screen without scrolling
    if path == "/runs":
        assert not page.locator("table.cards thead").is_visible()  # rows are cards


def test_long_errors_logs_deleted_runs_and_unknown_names_are_readable(visitor: Visitor, client: httpx.Client) -> None:
    run = make(client, "long-error")
    lines = "\n".join(f"line {place} of a long message" for place in range(60))
    end = {"seq": 2, "time": 1002.0, "kind": "end", "status": "failed", "message": lines}
    send(client, run, start(), step(1, 1), end)
    page = visitor.open(f"/runs/{run}")
    closed = page.locator(".note.bad").bounding_box()["height"]
    page.click(".note.bad summary")
    assert closed < 150 < page.locator(".note.bad").bounding_box()["height"]
    visitor.open(f"/runs/{run}/log")
    assert "failed: line 0" in page.inner_text("pre.log")
    client.patch(f"/api/v1/runs/{run}", json={"deleted": True})
    visitor.open("/runs?archived=deleted")
    page.check(f"input[value='{run}']")
    page.click("[data-bulk=undelete]")
    page.wait_for_selector(f"input[value='{run}']", state="detached")
    message = client.post("/api/v1/users", json={"name": "a b/c"}).json()["error"]
    assert message == "'a b/c' is not accepted: only letters, digits and . _ @ + -"  # no regular expression
    visitor.open("/runs?sort=-nothing-has-this")
    assert "no run has it" in page.inner_text(".note.warn") and page.locator("table.cards tbody tr").count() > 0


def test_a_benchmark_is_a_table_and_a_plot(visitor: Visitor, client: httpx.Client) -> None:
    sizes = [{"strategy": "allreduce", "workers": count, "speedup": count**0.9} for count in (1, 2, 4)]
    client.post("/api/v1/benchmarks", json={"name": "scale", "document": {"kind": "scale", "sizes": sizes}})
    page = visitor.open("/benchmarks")
    page.wait_for_function("() => document.querySelector('[data-figure]')?.data")
    assert page.locator("td", has_text="allreduce").count() >= 3 and page.locator("text=Speed-up").count() >= 1


def test_an_empty_server_greets_and_starts_a_demo(browser: Any, server: Live) -> None:
    visitor = Visitor(browser, server, server.token)
    page = visitor.page
    commands = page.locator(".welcome code").all_inner_texts()
    for line in ("clew login", "clew demo --push", "clew submit"):
        assert any(line in each for each in commands), line
    page.click("text=Start a demo run")
    page.wait_for_url("**/jobs/1")
    assert "demo" in page.inner_text("h1")
    visitor.open("/")
    assert page.locator(".welcome").count() == 0
    visitor.context.close()


def test_the_result_of_a_benchmark_is_sent_if_the_user_is_logged_in(
    visitor: Visitor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result = tmp_path / "result.json"
    result.write_text(json.dumps({"kind": "scale", "sizes": [{"strategy": "gem", "workers": 2, "speedup": 1.5}]}))
    monkeypatch.setenv("CLEW_SERVER", visitor.live.url)
    monkeypatch.setenv("CLEW_TOKEN", visitor.live.token)
    send_result("sent-by-bench", result)
    page = visitor.open("/benchmarks")
    sheet = page.locator("section", has_text="sent-by-bench").first
    assert sheet.locator("td", has_text="gem").count() == 1
    monkeypatch.setenv("CLEW_TOKEN", "clew_wrong")
    send_result("sent-by-bench", result)  # the benchmark itself has not failed
    assert f"the result is in {result}" in " ".join(capsys.readouterr().out.split())
