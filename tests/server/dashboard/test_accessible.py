"""axe-core finds no violation on any page, light or dark: of the dashboard, and of static pages."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import httpx
import pytest

from clew.figure import figure, line
from clew.runs.html_page import HtmlPage, table
from tests.server.conftest import Live
from tests.server.dashboard.conftest import Visitor
from tests.server.dashboard.test_plot_tools import scan
from tests.server.test_records import send

_AXE = (
    "() => axe.run(document, {resultTypes: ['violations'], runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', "
    "'best-practice']}).then(found => found.violations.flatMap(each => each.nodes.map("
    "node => `${each.id}: ${node.html.slice(0, 160)} ${node.any[0]?.message ?? ''}`)))"
)
_LARGEST = 1_500_000
"""Bytes of a static page."""


def violations(page: Any) -> list[str]:
    """What axe-core finds on the current page."""
    spec = importlib.util.find_spec("axe_playwright_python")
    if spec is None or spec.origin is None:
        pytest.skip("axe-playwright-python is not installed")
    page.evaluate(Path(spec.origin).with_name("axe.min.js").read_text())
    return list(page.evaluate(_AXE))


@pytest.fixture(scope="module")
def run(shared_server: Live) -> int:
    """A failed run with everything that pages show."""
    with shared_server.client() as client:
        number = scan(client, "accessible")
        end = {"seq": 46, "time": 2000.0, "kind": "end", "status": "failed", "message": "no more beam " * 60}
        send(client, number, end)
        client.put(f"/api/v1/runs/{number}/tags", json={"tags": ["paper"]})
        lines = {"seq": 0, "time": 1001.0, "kind": "output", "message": "one line\nanother"}
        send(client, number, lines, stream="console")
        client.put(f"/api/v1/runs/{number}/artefacts/report.html?kind=report", content="<h1>report</h1>")
        client.post("/api/v1/runs", json={"uid": "with-data", "name": "with-data", "dataset": "0123abcd"})
        sizes = [{"strategy": "allreduce", "workers": count, "speedup": count**0.9} for count in (1, 2, 4)]
        client.post("/api/v1/benchmarks", json={"name": "scale", "document": {"kind": "scale", "sizes": sizes}})
    return number


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_has_a_violation(
    browser: Any, shared_server: Live, client: httpx.Client, run: int, scheme: str
) -> None:
    other = scan(client, "accessible-too", 0.2)
    body = {"kind": "train", "name": "one", "dataset": "/d", "spec": {"recipe": "tracking"}}
    job = client.post("/api/v1/jobs", json=body)
    space = {"train.optimizer.lr": {"log": [1e-4, 0.1]}}
    tune = {"space": space, "objective": "val/loss", "trials": 2}
    study = client.post("/api/v1/studies", json={"name": f"accessible-{scheme}", "tune": tune, "external": True})
    facts = {"seconds": 2.0, "attempts": 1, "started": 1000.0, "run": "trial", "reason": "", "reports": {}}
    trials = [
        {"number": n, "state": "complete", "settings": {"train.optimizer.lr": 0.01 + n}, "values": [n / 2], **facts}
        for n in range(3)
    ]
    client.put(f"/api/v1/studies/{study.json()['id']}/trials", json={"trials": trials})
    paths = [
        f"/studies/{study.json()['id']}",
        "/login",
        "/",
        "/runs",
        "/runs?group=lr",
        f"/compare?run={run}&run={other}",
        "/explore?q=accessible",
        "/studies",
    ]
    paths += ["/jobs", f"/jobs/{job.json()['id']}", "/submit", "/datasets", "/benchmarks", "/accounts", "/runs/999999"]
    paths += ["/datasets/0123abcd", f"/runs/{run}/report", "/runs?archived=deleted", "/submit?kind=script"]
    paths += ["/submit?kind=tune", f"/submit?job={job.json()['id']}", "/runs?q=lr+%3C", "/runs?trials=all"]
    paths += [f"/runs/{run}{part}" for part in ("", "/system", "/plots", "/files", "/log", "/config", "/environment")]
    visitor = Visitor(browser, shared_server, shared_server.token, color_scheme=scheme)
    by_path = {}
    for path in paths:
        page = visitor.open(path)
        if page.locator("[data-curves], [data-scatter]").count():
            page.wait_for_selector(".js-plotly-plot .main-svg", state="attached")
        by_path[path] = violations(page)
    visitor.context.close()
    assert {path: each for path, each in by_path.items() if each} == {}
    client.post(f"/api/v1/jobs/{job.json()['id']}/cancel")


@pytest.mark.long
def test_an_empty_server_has_no_violation(browser: Any, server: Live) -> None:
    for scheme in ("light", "dark"):
        visitor = Visitor(browser, server, server.token, color_scheme=scheme)
        by_path = {path: violations(visitor.open(path)) for path in ("/", "/runs", "/studies", "/jobs", "/datasets")}
        visitor.context.close()
        assert {path: each for path, each in by_path.items() if each} == {}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_static_page_is_small_complete_and_accessible(browser: Any, tmp_path: Path, scheme: str) -> None:
    page = HtmlPage("first")
    page.header("failed", ["recipe <b>tracking</b>", "4 epochs"], ["a note " * 100])
    page.tiles({"efficiency": "<b>0.95</b> <small>± 0.01</small>"})
    values = [[each / (place + 1) for each in range(500)] for place in range(13)]
    curves = [line(range(500), values[place], f"m{place}", colour=place) for place in range(13)]
    drawn = [figure(curves, title=f"Plot {place}", x="step", y="m", yaxis={"type": "log"}) for place in range(4)]
    page.section("Training", table(("metric", "value"), [("loss", "1")]), drawn)
    path = page.write(tmp_path / "page.html")
    assert path.stat().st_size < _LARGEST
    context = browser.new_context(color_scheme=scheme, viewport={"width": 390, "height": 844})
    opened, faults = context.new_page(), []
    opened.on("pageerror", lambda error: faults.append(str(error)))
    opened.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    opened.goto(path.as_uri())
    opened.wait_for_function("() => [...document.querySelectorAll('[data-figure]')].every(place => place.data)")
    assert violations(opened) == [] and faults == []
    assert opened.evaluate("() => document.documentElement.scrollWidth") <= 390
    strokes = "data.map(each => each.line.color + each.line.dash)"
    lines = opened.evaluate(f"() => document.querySelector('[data-figure]').{strokes}")
    assert len(set(lines)) == 13  # no two of thirteen metrics look alike
    context.close()
