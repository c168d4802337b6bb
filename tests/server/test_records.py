"""Records: stored once for any input; points, summaries and curves made from them."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from pydantic import ValidationError

from clew.server.accounts.users import add_user
from clew.server.api.records import RecordReport
from clew.server.config import ServiceConfig
from clew.server.database.tables import runs
from clew.server.runs.ingestion import RecordBatch
from clew.server.service import Service


def start(seq: int = 0, ranks: int = 1) -> dict[str, Any]:
    return {"seq": seq, "time": 1000.0 + seq, "kind": "start", "schema": 1, "host": "here", "pid": 7, "ranks": ranks}


def step(seq: int, number: int, loss: float | None = None) -> dict[str, Any]:
    facts = {"epoch": 0, "step": number, "samples": 64 * number, "lr": 0.01}
    times = {"seconds": 0.5, "wait": 0.1, "communicate": 0.0}
    value = 1.0 / number if loss is None else loss
    return {"seq": seq, "time": 1000.0 + seq, "kind": "step", **facts, "loss": {"loss": value}, **times}


def make(client: httpx.Client, name: str) -> int:
    response = client.post("/api/v1/runs", json={"uid": name, "name": name})
    assert response.status_code in (200, 201), response.text
    return int(response.json()["id"])


def send(client: httpx.Client, run: int, *records: dict[str, Any], stream: str = "rank-0") -> dict[str, int]:
    response = client.post(f"/api/v1/runs/{run}/records", json={"streams": {stream: records}})
    assert response.status_code == 200, response.text
    return dict(response.json()["next"])


def loss(client: httpx.Client, run: int, **window: Any) -> dict[str, Any]:
    return dict(client.get(f"/api/v1/runs/{run}/metrics/train/loss", params=window).json())


@pytest.fixture
def run(client: httpx.Client, request: pytest.FixtureRequest) -> int:
    return make(client, request.node.name)


def test_a_batch_sent_twice_is_there_once(client: httpx.Client, run: int) -> None:
    batch = [start(), *(step(n, n) for n in range(1, 6))]
    assert send(client, run, *batch) == {"rank-0": 6}
    assert send(client, run, *batch[3:], step(6, 6)) == {"rank-0": 7}
    assert [each["seq"] for each in client.get(f"/api/v1/runs/{run}/records").json()["items"]] == list(range(7))
    drawn = loss(client, run)
    assert drawn["step"] == [1, 2, 3, 4, 5, 6] and not drawn["bins"]
    summary = {each["name"]: each for each in client.get(f"/api/v1/runs/{run}/metrics").json()["items"]}
    assert summary["train/loss"]["count"] == 6
    assert (summary["train/loss"]["min"], summary["train/loss"]["min_step"]) == (pytest.approx(1 / 6), 6)
    assert summary["speed/samples_per_second"]["last"] == pytest.approx(128)


def test_records_after_a_gap_wait(client: httpx.Client, run: int) -> None:
    assert send(client, run, start(), step(1, 1)) == {"rank-0": 2}
    assert send(client, run, step(5, 5)) == {"rank-0": 2}
    assert send(client, run, *(step(n, n) for n in range(2, 6))) == {"rank-0": 6}


def test_many_senders_of_the_same_store_it_once(client: httpx.Client, run: int) -> None:
    batch = [start(), *(step(n, n) for n in range(1, 50))]
    threads = [threading.Thread(target=send, args=(client, run, *batch)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert loss(client, run)["count"] == 49


_WORDS = {"quotes": 'a "b" \\ c', "braces": "{1,NULL}", "null": "NULL", "empty": "", "space": " ", "odd": "ü\n\t'%s"}


@pytest.mark.parametrize("words", _WORDS.values(), ids=_WORDS.keys())
def test_text_is_stored_unchanged(client: httpx.Client, words: str, request: pytest.FixtureRequest) -> None:
    run = make(client, f"words-{request.node.callspec.id}")
    name = f"{words}/auc"
    validation = {"seq": 1, "time": 1001.0, "kind": "validation", "epoch": 0, "step": 1, "metrics": {name: 0.5}}
    end = {"seq": 2, "time": 1002.0, "kind": "end", "status": "failed", "message": words}
    send(client, run, start(), validation, end)
    row = client.get(f"/api/v1/runs/{run}").json()
    assert (row["message"], row["metrics"]) == (words, {name: 0.5})
    assert client.get(f"/api/v1/runs/{run}/records").json()["items"][1:] == [validation, end]
    assert [each["name"] for each in client.get(f"/api/v1/runs/{run}/metrics").json()["items"]] == [f"val/{name}"]


def test_the_row_of_a_run_follows_its_records(client: httpx.Client, run: int) -> None:
    validation = {"seq": 2, "time": 1002.0, "kind": "validation", "epoch": 0, "step": 1, "seconds": 1.0}
    send(client, run, start(ranks=4), step(1, 1), {**validation, "metrics": {"auc": 0.9, "bad": None}})
    row = client.get(f"/api/v1/runs/{run}").json()
    assert (row["state"], row["workers"], row["epochs_done"], row["host"]) == ("running", 4, 1, "here")
    assert row["metrics"] == {"auc": 0.9, "bad": None}
    send(client, run, {"seq": 3, "time": 1009.0, "kind": "end", "status": "failed", "message": "loss is nan"})
    row = client.get(f"/api/v1/runs/{run}").json()
    assert (row["state"], row["message"], row["ended"]) == ("failed", "loss is nan", 1009.0)
    assert run in {each["id"] for each in client.get("/api/v1/overview").json()["failed"]}


def test_a_resumed_run_has_what_it_did_again_once(client: httpx.Client, run: int) -> None:
    send(client, run, start(), *(step(n, n) for n in range(1, 9)))
    again = {"seq": 10, "time": 2000.0, "kind": "resume", "epoch": 0, "step": 4, "file": "x", "damaged": []}
    send(client, run, start(9), again, *(step(n, n - 6, loss=9.0) for n in range(11, 14)))
    drawn = loss(client, run)
    assert drawn["step"] == [1, 2, 3, 4, 5, 6, 7]
    assert drawn["last"][4:] == [9.0, 9.0, 9.0]
    summary = {each["name"]: each for each in client.get(f"/api/v1/runs/{run}/metrics").json()["items"]}
    assert (summary["train/loss"]["count"], summary["train/loss"]["max"]) == (7, 9.0)
    assert len(client.get(f"/api/v1/runs/{run}/records").json()["items"]) == 14


def test_a_run_resumed_from_a_step_is_summarized_again(client: httpx.Client, run: int) -> None:
    values = {1: 5.0, 2: -3.0, 300: 8.0, 400: 8.0, 590: float("nan"), 595: 99.0}
    steps = [step(n, n, loss=values.get(n, 1.0)) for n in range(1, 600)]
    again = {"seq": 600, "time": 3000.0, "kind": "resume", "epoch": 0, "step": 590, "file": "x", "damaged": []}
    more = [{**again, "seq": 601}, *(step(n, n - 11, loss=2.0) for n in range(602, 900))]
    text = json.dumps({"streams": {"rank-0": [start(), *steps, again]}})
    head = {"Content-Type": "application/json"}
    assert client.post(f"/api/v1/runs/{run}/records", content=text, headers=head).status_code == 200
    result = {each["name"]: each for each in client.get(f"/api/v1/runs/{run}/metrics").json()["items"]}["train/loss"]
    response = [
        result[name] for name in ("count", "first", "last", "min", "min_step", "max", "max_step", "step", "time")
    ]
    assert response == [590, 5.0, None, -3.0, 2, 8.0, 300, 590, 1590.0]
    send(client, run, *more)
    drawn = loss(client, run, points=50)
    assert drawn["count"] == 888 and drawn["step"][-1] == 888
    assert (min(drawn["min"]), max(drawn["max"])) == (-3.0, 8.0)


def test_resuming_from_the_newest_step_counts_nothing_again(tmp_path: Path) -> None:
    service = Service.open(ServiceConfig(folder=tmp_path / "service"))
    request: list[str] = []
    sa.event.listen(service.database.writer, "before_cursor_execute", lambda *values: request.append(values[2]))
    facts: dict[str, Any] = dict.fromkeys(("uid", "name", "recipe", "state", "message", "host"), "")
    facts |= {name: {} for name in ("config", "environment", "metrics")} | {"created": 0.0, "updated": 0.0}
    run = service.write(lambda transaction: transaction.add(runs, owner=add_user(transaction, "ada"), **facts))
    again = {"seq": 9, "time": 2000.0, "kind": "resume", "step": 8}
    batch = RecordBatch(run, {"rank-0": [start(), *(step(n, n) for n in range(1, 9)), again]})
    assert service.writer.submit_grouped(service.ingestion.ingest, batch).result() == {"rank-0": 10}
    service.close()
    assert not [each for each in request if "spans" in each or (each.startswith("SELECT") and "FROM points" in each)]


def test_long_curves_come_in_bins_and_zoom(client: httpx.Client, run: int) -> None:
    send(client, run, start(), *(step(n, n) for n in range(1, 3001)))
    drawn = loss(client, run, points=100)
    assert drawn["bins"] and drawn["count"] == 3000 and 50 < len(drawn["step"]) <= 100
    assert drawn["max"][0] == 1.0 and drawn["min"][-1] == pytest.approx(1 / 3000)
    assert drawn["step"][-1] == 3000
    near = loss(client, run, points=100, **{"from": 1000, "to": 1049})
    assert near["step"] == list(range(1000, 1050)) and not near["bins"]
    timed = loss(client, run, points=100, axis="time", **{"from": 2000, "to": 2010})
    assert timed["step"] == list(range(1000, 1011))


def test_strange_records_are_stored_and_break_nothing(client: httpx.Client, run: int) -> None:
    strange = [
        {"seq": 0, "time": 1.0, "kind": "step", "loss": "high", "step": "one"},
        {"seq": 1, "time": 1.0, "kind": "step", "loss": {"a": None, "b": True, "c": 10**400}, "seconds": -1},
        {"seq": 2, "time": 1.0, "kind": "validation", "metrics": [1, 2], "epoch": 10**30},
        {"seq": 3, "time": 1.0, "kind": "start", "ranks": -3, "host": {"a": "\u0000"}},
        {"seq": 4, "time": 1.0, "kind": "end", "status": "\ud800", "message": "\u0000\ud800"},
        {"seq": 5, "time": 1.0, "kind": "usage", "cpu": float("inf"), "memory": 5},
    ]
    body = json.dumps({"streams": {"rank-0": strange}})
    response = client.post(f"/api/v1/runs/{run}/records", content=body, headers={"Content-Type": "application/json"})
    assert response.json() == {"next": {"rank-0": 6}}
    assert client.get(f"/api/v1/runs/{run}").status_code == 200
    assert client.get(f"/api/v1/runs/{run}/curves").status_code == 200


def test_deep_records_break_nothing(client: httpx.Client, run: int) -> None:
    for depth in (150, 300, 700, 900, 950, 970, 100_000):
        following = client.get(f"/api/v1/runs/{run}/records/streams").json()["next"].get("rank-0", 0)
        deep = "[" * depth + "]" * depth
        text = f'{{"streams":{{"rank-0":[{{"seq":{following},"time":1,"kind":"note","deep":{deep}}}]}}}}'
        response = client.post(
            f"/api/v1/runs/{run}/records", content=text, headers={"Content-Type": "application/json"}
        )
        assert response.status_code in (200, 422), depth
    assert client.get(f"/api/v1/runs/{run}/records").status_code == 200


def test_a_deleted_run_takes_no_more(client: httpx.Client, run: int) -> None:
    send(client, run, start(), step(1, 1))
    assert client.delete(f"/api/v1/runs/{run}").status_code == 204
    response = client.post(f"/api/v1/runs/{run}/records", json={"streams": {"rank-0": [step(2, 2)]}})
    assert response.status_code == 404


def test_events_announce_new_points(client: httpx.Client, run: int) -> None:
    send(client, run, start(), step(1, 1))
    result: dict[str, Any] = {}
    with client.stream("GET", f"/api/v1/runs/{run}/events", headers={"Last-Event-ID": "rank-0:0"}) as events:
        name = ""
        for line in events.iter_lines():
            name = line.removeprefix("event: ") if line.startswith("event: ") else name
            if line.startswith("data: ") and name == "points":
                for metric, points in json.loads(line[6:]).items():
                    result.setdefault(metric, []).extend(points)
                if len(result["train/loss"]) == 1:
                    send(client, run, step(2, 2), step(3, 3))
                else:
                    break
    assert [point[0] for point in result["train/loss"]] == [1, 2, 3]


def test_the_number_of_a_deleted_run_is_never_reused(client: httpx.Client, run: int) -> None:
    send(client, run, start())
    assert client.delete(f"/api/v1/runs/{run}").status_code == 204
    again = make(client, "after-the-deleted-one")
    assert again > run
    response = client.post(f"/api/v1/runs/{run}/records", json={"streams": {"rank-0": [start()]}})
    assert response.status_code == 404
    assert client.get(f"/api/v1/runs/{again}/records/streams").json()["next"] == {}


def test_a_batch_full_of_mistakes_is_refused_with_a_short_message(client: httpx.Client, run: int) -> None:
    wrong: list[dict[str, Any]] = [{"rank-0": [{}] * 4000}, {f" {n}": [] for n in range(4000)}]
    for streams in wrong:
        response = client.post(f"/api/v1/runs/{run}/records", json={"streams": streams})
        assert response.status_code == 422 and len(response.content) < 2000
    with pytest.raises(ValidationError) as caught:
        RecordReport.model_validate({"streams": {"rank-0": [{}] * 4000}})
    assert caught.value.error_count() == 3
