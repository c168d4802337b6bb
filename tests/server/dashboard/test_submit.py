"""The submit form: datasets to choose from, required fields, the same job from a shell, and jobs submitted again."""

from __future__ import annotations

import json
import shlex

import httpx
import pytest

from tests.cli import done
from tests.server.dashboard.conftest import Visitor

_ERROR = "[data-field='job.dataset'] .wrong"


def _job(client: httpx.Client, number: str) -> dict[str, object]:
    job = client.get(f"/api/v1/jobs/{number}").json()
    assert client.post(f"/api/v1/jobs/{number}/cancel").status_code == 200
    return {name: job[name] for name in ("kind", "name", "dataset", "resources", "priority", "requeue")}


def test_the_form_and_its_line_submit_the_same_job(
    visitor: Visitor, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"recipe": "tracking", "train": {"dataset": "/data/used"}}
    client.post("/api/v1/runs", json={"uid": "uses", "name": "uses", "config": config}).raise_for_status()
    key = "ab" * 32
    body = {"key": key, "name": "tracks", "location": "/data/tracks", "manifest": {}}
    assert client.post("/api/v1/datasets", json=body).status_code == 201
    page = visitor.open("/submit")
    choices = page.locator("#known-datasets option").evaluate_all("all => all.map(each => each.value)")
    assert {"/data/tracks", "/data/used"} <= set(choices)
    page.fill("[name='job.name']", "twice")
    page.click("form#submit button.main")  # the browser asks for the dataset
    assert page.url.endswith("/submit") and page.evaluate("() => !document.getElementById('submit').checkValidity()")
    for wrong, message in (("cd" * 32, "have not registered"), ("data", "full path")):
        page.fill("[name='job.dataset']", wrong)
        page.wait_for_function(f'text => document.querySelector("{_ERROR}").textContent.includes(text)', arg=message)
        assert page.locator("[data-line]").is_hidden()
    page.fill("[name='job.dataset']", key)
    page.fill("[name='job.cpus']", "2")
    for name, value in (("train.workers", "2"), ("train.optimizer.lr", "1e-4"), ("job.minutes", "90")):
        box = page.locator(f"[name='{name}']")
        box.evaluate("box => { for (let up = box; up; up = up.parentElement) if (up.open === false) up.open = true }")
        box.fill(value)
    page.wait_for_function("() => document.getElementById('line').textContent.includes('90m')")
    line = shlex.split(page.inner_text("#line"))
    page.click("form#submit button.main")
    page.wait_for_url("**/jobs/*")
    by_form = page.url.rpartition("/")[2]

    monkeypatch.setenv("CLEW_SERVER", visitor.live.url)
    monkeypatch.setenv("CLEW_TOKEN", visitor.live.token)
    by_line = json.loads(done(*line[1:], "--json"))
    assert _job(client, by_form) == _job(client, str(by_line["id"]))
    spec = client.get(f"/api/v1/jobs/{by_line['id']}").json()["spec"]
    assert (spec["train"]["workers"], spec["train"]["optimizer"]["lr"]) == (2, 1e-4)

    visitor.open(f"/jobs/{by_form}")
    page.click("text=Submit again, changed")
    page.wait_for_function("() => document.getElementById('line').textContent !== ''")
    assert shlex.split(page.inner_text("#line")) == line
    assert visitor.faults == []
