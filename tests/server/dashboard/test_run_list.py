"""The list of runs in a browser: query language with completion, columns, groups, views, bulk actions with undo."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.server.conftest import Live
from tests.server.dashboard.conftest import Visitor
from tests.server.dashboard.test_evaluations import evaluation
from tests.server.test_records import send, start, step


def listed_run(client: httpx.Client, name: str, rate: float, efficiency: float, **body: Any) -> int:
    config = {"recipe": "tracking", "train": {"optimizer": {"lr": rate}, "strategy": "single"}}
    response = client.post("/api/v1/runs", json={"uid": name, "name": name, "config": config, **body})
    run = int(response.json()["id"])
    metrics = {"loss": 1 - efficiency, "efficiency": efficiency}
    record = {"seq": 1, "time": 1001.0, "kind": "validation", "epoch": 0, "step": 1, "metrics": metrics}
    send(client, run, start(), record)
    return run


@pytest.fixture
def four(client: httpx.Client) -> list[int]:
    """Four runs with two learning rates; the last one has no efficiency, the second a tag."""
    values = ((0.1, 0.7), (0.001, 0.95), (0.001, 0.91))
    runs = [listed_run(client, f"list-{place}", *each) for place, each in enumerate(values)]
    client.put(f"/api/v1/runs/{runs[1]}/tags", json={"tags": ["printed"]})
    runs.append(int(client.post("/api/v1/runs", json={"uid": "list-3", "name": "list-3"}).json()["id"]))
    return runs


def shown(page: Any) -> list[str]:
    return [each.split(" ")[0] for each in page.locator("table.cards tbody tr td:nth-child(2) > a").all_inner_texts()]


@pytest.mark.long
def test_runs_are_filtered_sorted_and_grouped_by_any_value(visitor: Visitor, four: list[int]) -> None:
    page = visitor.open("/runs")
    page.fill("#q", "list- val/eff")
    page.wait_for_selector("#completions li:has-text('val/efficiency')")
    page.keyboard.press("Tab")
    assert page.input_value("#q") == "list- val/efficiency "
    page.keyboard.type("> 0.9 and lr < 0.01")
    page.keyboard.press("Enter")
    page.wait_for_url("**/runs?q=*")
    assert set(shown(page)) == {"list-1", "list-2"}
    visitor.open("/runs?q=list- and not tag:printed&sort=-efficiency")
    assert shown(page) == ["list-2", "list-0", "list-3"]
    page.click("th a:has-text('Run')")
    page.wait_for_url("**sort=-name*")
    assert shown(page) == ["list-3", "list-2", "list-0"]

    visitor.open("/runs?q=lr %3C")
    assert page.inner_text(".note.bad") == "lr <: a value is missing at character 5"
    visitor.open("/runs?q=eficiency>1")
    assert "no run has 'eficiency' (at character 1)" in page.inner_text(".note.bad")

    visitor.open("/runs?q=list-&columns=lr,val/efficiency")
    heads = page.locator("th").all_inner_texts()
    assert heads[heads.index("lr") + 1] == "val/efficiency"
    page.click("button[title='Move val/efficiency to the left']")
    page.wait_for_url("**columns=val%2Fefficiency%2Clr*")
    row = page.locator(f"tr:has(a[href='/runs/{four[1]}'])")
    assert row.locator("[data-label='lr']").inner_text() == "0.001"

    visitor.open("/runs?q=list-&group=lr&columns=efficiency")
    rows = [each.split("\t") for each in page.locator("table.groups tbody tr").all_inner_texts()]
    assert rows[0] == ["0.001", "2", "0.930 ± 0.028"]
    assert ["0.1", "1", "0.7000"] in rows and ["–", "1", "–"] in rows
    assert visitor.faults == []


@pytest.mark.long
def test_views_notes_and_bulk_actions_with_undo(visitor: Visitor, four: list[int]) -> None:
    page = visitor.open("/runs?q=list-&sort=name")
    page.on("dialog", lambda dialog: dialog.accept("my-view"))
    page.click("text=save this view")
    page.click(".views >> text=my-view")
    page.wait_for_url("**q=list-*")
    assert len(shown(page)) == 4
    for action, before in (("archive", 4), ("delete", 4)):
        page.check(f"input[value='{four[0]}']")
        page.click(f"[data-bulk={action}]")
        page.wait_for_selector(f"input[value='{four[0]}']", state="detached")
        assert len(shown(page)) == before - 1
        page.click(".message >> text=Undo")
        page.wait_for_selector(f"input[value='{four[0]}']")
    page.check(f"input[value='{four[0]}']")
    page.click("[data-bulk=tag]")
    page.wait_for_selector(f"tr:has(input[value='{four[0]}']) >> text=my-view")

    visitor.open(f"/runs/{four[0]}")
    page.click("summary >> text=Edit")
    page.fill("#run-name", "list-0-renamed")
    page.fill("#run-note", "the one for the talk")
    page.click("details.edit >> text=Save")
    page.wait_for_selector("h1 >> text=list-0-renamed")
    assert page.inner_text(".remark") == "the one for the talk"
    visitor.open("/runs?q=note:talk")
    assert shown(page) == ["list-0-renamed"]
    page.click("button[title='Delete the view my-view']")
    page.wait_for_selector(".views >> text=my-view", state="detached")
    assert visitor.faults == []


def test_trials_fold_under_their_study_and_runs_sort_by_start(visitor: Visitor, client: httpx.Client) -> None:
    tune = {"space": {"x": {"uniform": [0, 1]}}, "objective": "val/loss", "trials": 3}
    study = client.post("/api/v1/studies", json={"name": "widths", "tune": tune, "external": True}).json()["id"]
    for trial in range(4):
        newest = listed_run(client, f"trial-{trial:04d}", 0.1, 0.5, study=study, trial=trial)
        metrics = {"epoch": 1, "step": 4, "seconds": 1.0, "metrics": {"loss": 0.25 + trial}}
        send(client, newest, {"seq": 2, "time": 1003.0, "kind": "validation", **metrics})
    client.patch(f"/api/v1/runs/{newest}", json={"deleted": True})  # the study stays in the list
    page = visitor.open("/runs")
    assert page.locator(f"a[href='/studies/{study}']").count() == 1
    folded = page.locator(f"tr:has(a[href='/studies/{study}'])")
    assert folded.locator("[data-label='Best loss']").inner_text() == "0.25"  # of all trials
    page.click("text=3 trials")
    page.wait_for_url("**/runs?q=study*")
    assert set(page.locator("table.cards tbody td:nth-child(2) > a").all_inner_texts()) == {
        f"widths › trial-{trial:04d}" for trial in range(3)
    }
    late, early = (int(client.post("/api/v1/runs", json={"uid": n, "name": n}).json()["id"]) for n in ("late", "early"))
    send(client, late, {**start(), "time": 3000.0})
    send(client, early, {**start(), "time": 2000.0})
    visitor.open("/runs?q=name%3Dlate or name%3Dearly")
    for _ in range(50):  # the page moves a row while it updates itself
        if len(shown(page)) == 2:
            break
        page.wait_for_timeout(100)
    assert shown(page) == ["late", "early"]


def test_a_run_that_was_killed_took_until_its_last_record(visitor: Visitor, client: httpx.Client) -> None:
    run = int(client.post("/api/v1/runs", json={"uid": "killed-long-ago", "name": "killed-long-ago"}).json()["id"])
    send(client, run, start(), step(1, 1), {**step(2, 2), "time": 1090.0})  # recorded in 1970, sent today
    assert client.patch(f"/api/v1/runs/{run}", json={"state": "interrupted"}).status_code == 200
    page = visitor.open("/runs?q=killed-long-ago")
    assert page.inner_text("[data-label='Took']") == "1 m 30 s"
    assert len(client.get("/api/v1/runs", params={"where": "name:killed-long seconds < 100"}).json()["items"]) == 1
    visitor.open(f"/runs/{run}")
    assert "1 m 30 s" in page.inner_text(".tiles")


def test_the_api_takes_the_same_query(client: httpx.Client, four: list[int]) -> None:
    def names(where: str) -> set[str]:
        items = client.get("/api/v1/runs", params={"where": f"name:list- and ({where})"}).json()["items"]
        return {each["name"] for each in items}

    assert names("lr < 0.01 and efficiency > 0.9") == {"list-1", "list-2"}
    assert names("not lr < 0.01") >= {"list-3"}
    assert names("strategy = SINGLE and tag:printed") == {"list-1"}
    answer = client.get("/api/v1/runs", params={"where": "lr <"})
    assert answer.status_code == 422 and "at character 5" in answer.json()["error"]
    record = evaluation(0, "test", efficiency={"value": 0.5, "error": 0.1})
    send(client, four[0], record, stream="evaluate")
    assert len(client.get("/api/v1/runs", params={"where": f"id={four[0]} test/efficiency=0.5"}).json()["items"]) == 1


def test_runs_of_others_cannot_be_changed(shared_server: Live, person: Any, four: list[int]) -> None:
    bob = person("bob")
    answer = bob.post("/api/v1/runs/changes", json={"runs": [four[0]], "deleted": True})
    assert answer.status_code == 404
    assert bob.get("/api/v1/views").json() == []
