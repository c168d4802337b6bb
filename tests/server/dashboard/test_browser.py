"""Tests with a browser: keys, colours, zoom, selection, live pages, and names that are scripts."""

from __future__ import annotations

import json
import time

import httpx

from tests.server.dashboard.conftest import Visitor
from tests.server.test_records import make, send, start, step

EVIL = "<script>document.title='x'</script><img src=x onerror=\"document.title='x'\">"


def long_run(client: httpx.Client, name: str, count: int = 4000) -> int:
    """A run with more points than a plot shows."""
    run = make(client, name)
    records = [step(n, n, loss=1 / n + (0.01 if n % 2 else 0.0)) for n in range(1, count)]
    send(client, run, start(), *records)
    return run


def test_keys_lead_everywhere(visitor: Visitor, client: httpx.Client) -> None:
    run = long_run(client, "by-keys", 30)
    page = visitor.open("/")
    page.keyboard.press("g")
    page.keyboard.press("r")
    page.wait_for_url("**/runs")
    page.keyboard.press("/")
    page.keyboard.type("by-keys")
    page.keyboard.press("Enter")
    page.wait_for_url("**/runs?q=by-keys*")
    page.keyboard.press("j")
    page.keyboard.press("x")
    assert page.inner_text("[data-picked]") == "1 selected"
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/runs/{run}")
    page.keyboard.press("?")
    assert page.locator("dialog#keys").is_visible()
    assert visitor.faults == []


def test_colours_stay_the_same(visitor: Visitor) -> None:
    page = visitor.open("/runs")
    light = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    page.keyboard.press("t")
    dark = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    assert light != dark
    visitor.open("/jobs")
    assert page.evaluate("() => getComputedStyle(document.body).backgroundColor") == dark


def test_zooming_in_loads_what_was_thinned_out(visitor: Visitor, client: httpx.Client) -> None:
    page = visitor.open(f"/runs/{long_run(client, 'zoomed')}")
    page.wait_for_selector("[data-curves] .scatterlayer path", state="attached")
    where = "document.querySelector('[data-curves]')"
    points = f"() => {where}.data.find(trace => trace.name).x.length"
    page.wait_for_function(f"() => {where}.data")  # before, it is a sketch
    assert page.evaluate(points) < 1500
    page.evaluate(f"() => Plotly.relayout({where}, {{'xaxis.range[0]': 1000, 'xaxis.range[1]': 1200}})")
    page.wait_for_function(f"() => {where}.data.length === 1 && ({points})() === 201")
    page.evaluate(f"() => Plotly.relayout({where}, {{'xaxis.autorange': true}})")
    page.wait_for_function(f"() => ({points})() > 500")
    assert visitor.faults == []


def test_a_displayed_curve_is_updated(visitor: Visitor, client: httpx.Client) -> None:
    run = make(client, "growing")
    send(client, run, start(), *(step(n, n) for n in range(1, 10)))
    page = visitor.open(f"/runs/{run}")
    points = "() => document.querySelector('[data-curves]').data[0].x.length"
    page.wait_for_function(f"() => document.querySelector('[data-curves]').data && ({points})() === 9")
    send(client, run, *(step(n, n) for n in range(10, 30)))
    page.wait_for_function(f"() => ({points})() === 29")
    send(client, run, {"seq": 30, "time": 1030.0, "kind": "end", "status": "failed", "message": "no more"})
    page.wait_for_selector("h1 .state.failed")


def test_the_list_follows_and_keeps_what_was_ticked(visitor: Visitor, client: httpx.Client) -> None:
    first = make(client, "ticked")
    page = visitor.open("/runs?q=ticked")
    page.check(f"input[value='{first}']")
    second = make(client, "ticked-later")
    page.evaluate("() => dispatchEvent(new Event('clew:refresh'))")
    page.wait_for_selector(f"input[value='{second}']")
    assert page.is_checked(f"input[value='{first}']")
    page.check(f"input[value='{second}']")
    page.click("text=Compare >> visible=true")
    page.wait_for_url("**/compare?*")


def test_a_name_is_never_run(visitor: Visitor, client: httpx.Client) -> None:
    runs = []
    for number in range(2):
        body = {"uid": f"named-{number}", "name": f"{EVIL} {number}", "config": {"train": {EVIL: number}}}
        runs.append(int(client.post("/api/v1/runs", json=body).json()["id"]))
        records = [{**step(n, n), "loss": {"loss": 1.0, EVIL: 1 / n}} for n in (1, 2, 3)]
        send(client, runs[-1], start(), *records)
    figure = {"data": [{"x": [1], "y": [1], "name": EVIL}], "layout": {"title": {"text": EVIL}, "showlegend": True}}
    response = client.put(f"/api/v1/runs/{runs[0]}/artefacts/plots/a.json?kind=plot", content=json.dumps(figure))
    assert response.status_code == 201, response.text
    page = visitor.page
    for path in (f"/compare?run={runs[0]}&run={runs[1]}", f"/runs/{runs[0]}", f"/runs/{runs[0]}/plots", "/", "/runs"):
        visitor.open(path)
        if page.locator("[data-curves], [data-figure]").count():
            page.wait_for_selector(".js-plotly-plot .scatterlayer path", state="attached")
        page.wait_for_timeout(200)
        assert page.title() != "x", path
        assert page.locator("main img, main script:not([type='application/json'])").count() == 0, path


def test_a_stored_page_cannot_act_as_the_viewer(visitor: Visitor, client: httpx.Client) -> None:
    run = make(client, "with-report")
    script = "fetch('/api/v1/me').then(r => r.text()).then(t => document.title = 'in', () => document.title = 'out')"
    page = f"<h1>mine</h1><script>try {{ top.document.title = 'x' }} catch {{}} {script}</script>"
    client.put(f"/api/v1/runs/{run}/artefacts/report.html?kind=report", content=page)
    shown = visitor.open(f"/runs/{run}/report")
    inside = shown.frame_locator("iframe")
    inside.locator("h1").wait_for()
    frame = next(each for each in shown.frames if each != shown.main_frame)
    frame.wait_for_function("() => document.title !== ''")
    assert frame.title() == "out"
    assert shown.title() != "x"


def test_a_live_run_shows_the_time_left_and_its_usage_over_time(visitor: Visitor, client: httpx.Client) -> None:
    run, now = make(client, "live-head"), time.time()
    plan = {"seq": 1, "time": now - 99, "kind": "plan", "epochs": 10, "parameters": 7, "device": "cpu"}
    begin = {**start(), "time": now - 100}
    send(client, run, begin, plan, *({**step(n, n), "time": now - 90 + n} for n in range(2, 6)))
    usage = [{"seq": n, "time": now - 90 + 10 * n, "kind": "usage", "cpu": 1.5, "memory": 1e9} for n in range(5)]
    send(client, run, *usage, stream="usage-0")
    page = visitor.open(f"/runs/{run}/system")
    page.wait_for_function("() => document.querySelector('[data-curves]').data?.[0].x.length > 1")
    drawn = "() => [...document.querySelectorAll('[data-curves]')].map(each => each.layout?.xaxis?.title?.text)"
    assert "seconds" in page.evaluate(drawn) and "step" not in page.evaluate(drawn)
    assert "left" not in page.inner_text("#live-head")
    validation = {"seq": 6, "time": now - 80, "kind": "validation", "epoch": 1, "step": 5, "metrics": {"loss": 0.5}}
    send(client, run, validation)
    page.evaluate("() => dispatchEvent(new Event('clew:refresh'))")
    page.wait_for_function("() => document.querySelector('#live-head').innerText.includes('20% · about')")
    assert "epoch 2 of 10" in page.inner_text("#live-head") and visitor.faults == []


def test_failures_and_studies_are_reached_from_their_links(visitor: Visitor, client: httpx.Client) -> None:
    run = make(client, "failed-today")
    send(client, run, start(), {"seq": 1, "time": time.time(), "kind": "end", "status": "failed", "message": "no beam"})
    page = visitor.open("/")
    page.click("a.tile:has-text('failed in 24 h')")
    page.wait_for_url("**/#failed")
    assert "no beam" in page.inner_text("#failed")
    tune = {"space": {"train.optimizer.lr": {"log": [1e-5, 0.1]}}, "objective": "val/loss", "trials": 2}
    body = {"kind": "tune", "name": "search", "spec": {"recipe": "tracking", "tune": tune}, "trials_as_jobs": True}
    response = client.post("/api/v1/jobs", json={**body, "dataset": "/data/x"})
    assert response.status_code == 201, response.text
    visitor.open(f"/jobs/{response.json()['id']}")
    assert page.locator(".actions a.button.main").all_inner_texts() == ["Study"]
    client.post(f"/api/v1/jobs/{response.json()['id']}/cancel")
