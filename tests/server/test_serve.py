"""`clew serve`: starts, prints its address, refuses unsafe settings, stops without losing data."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from clew.runs import Run
from tests.server import load
from tests.server.conftest import Live
from tests.server.test_records import loss, make, send, start, step

CLEW = [sys.executable, "-c", "from clew.cli.main import run; run()"]


def _run_clew(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*CLEW, *arguments], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--host", "192.0.2.1", "--folder", "{folder}"), "choose another --host"),
        (("--folder", "{file}"), "this is a file, and a folder is needed; name another one"),
        (("--config", "{file}"), "trusted_proxies.0: an address or a network, such as 127.0.0.1"),
    ],
)
def test_a_wrong_place_is_refused_in_one_line(options: tuple[str, ...], message: str, tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_text("trusted_proxies: [localhost]\n")
    folder = str(tmp_path / "service")
    _run_clew("token", "create", "first", "--user", "ada", "--folder", folder)
    words = [word.format(folder=folder, file=file) for word in options]
    refused = _run_clew("serve", "--port", "0", "--no-agent", *words)
    assert refused.returncode == 2 and refused.stderr.count("\n") == 1
    assert message in refused.stderr


def test_a_token_is_not_made_for_a_name_that_no_user_may_have(tmp_path: Path) -> None:
    refused = _run_clew("token", "create", "first", "--user", "a b", "--folder", str(tmp_path / "service"))
    assert refused.returncode == 2 and refused.stderr.startswith("clew: --user a b: a name has letters, digits and")


def test_it_does_not_listen_to_others_before_there_are_tokens(tmp_path: Path) -> None:
    folder = str(tmp_path / "service")
    refused = _run_clew("serve", "--folder", folder, "--host", "0.0.0.0", "--port", "0", "--no-agent")
    assert refused.returncode == 2 and "there is no token yet" in refused.stderr
    created = _run_clew("token", "create", "first", "--user", "ada", "--scope", "admin", "--folder", folder)
    assert created.returncode == 0, created.stderr
    assert len(created.stdout.split()) == 1 and "only time" in created.stderr  # so `> token` is a file for `clew login`
    live = Live(tmp_path / "service", ("--no-agent", "--host", "0.0.0.0"))
    live.start()
    live.url = live.url.replace("0.0.0.0", "127.0.0.1")
    with live.client(created.stdout.split()[0]) as client:
        me = client.get("/api/v1/me").json()
    assert (me["name"], me["admin"]) == ("ada", True)
    assert live.stop() == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--port", "99999"], "port"),
        (["--host", "192.0.2.1"], "there is no token"),
        (["--database", "mysql://x"], "expected postgresql"),
        (["--log", "loud"], "choose from debug"),
        (["--config", "nowhere.yaml"], "cannot read"),
    ],
)
def test_mistakes_get_one_line(tmp_path: Path, options: list[str], words: str) -> None:
    done = _run_clew("serve", "--folder", str(tmp_path / "service"), "--no-agent", *options)
    assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr


def test_one_folder_has_one_server_and_one_port_one_listener(server: Live, tmp_path: Path) -> None:
    again = _run_clew("serve", "--folder", str(server.folder), "--port", "0", "--no-agent")
    assert again.returncode == 2 and "another server uses this database" in again.stderr
    port = server.url.rpartition(":")[2]
    taken = _run_clew("serve", "--folder", str(tmp_path / "other"), "--port", port, "--no-agent")
    assert taken.returncode == 2 and "choose another --port" in taken.stderr


def test_settings_come_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "server.yaml").write_text("limits:\n  body_bytes: 1000\nretention:\n  - {kind: log, days: 7}\n")
    live = Live(tmp_path / "service", ("--no-agent", "--config", str(tmp_path / "server.yaml"))).start()
    with live.client() as client:
        assert client.post("/api/v1/runs", json={"uid": "a", "name": "a", "recipe": "x" * 2000}).status_code == 413
    live.stop()
    (tmp_path / "server.yaml").write_text("limits:\n  body: 1000\n")
    wrong = _run_clew("serve", "--config", str(tmp_path / "server.yaml"), "--folder", str(tmp_path / "x"))
    assert wrong.returncode == 2 and "server.yaml:2: unknown key 'limits.body'" in wrong.stderr


def test_it_stops_with_streams_open_and_starts_again_with_everything(tmp_path: Path) -> None:
    live = Live(tmp_path / "service", ("--no-agent", "--log", "info")).start()
    with live.client() as client:
        run = make(client, "kept")
        send(client, run, start(), *(step(n, n) for n in range(1, 20)))
        opened = threading.Event()

        def listen() -> None:
            with live.client() as other, other.stream("GET", f"/api/v1/runs/{run}/events") as events:
                for _ in events.iter_lines():
                    opened.set()

        listener = threading.Thread(target=listen)
        listener.start()
        assert opened.wait(30)
        assert live.stop() == 0
        listener.join(30)
        assert not listener.is_alive()
    live.start()
    with live.client() as client:
        assert loss(client, run)["count"] == 19
    live.stop()
    lines = [json.loads(line) for line in live.log.splitlines()]
    request = next(line for line in lines if line.get("method") == "POST" and line["path"].endswith("/records"))
    assert {"time", "level", "request", "status", "ms", "user"} <= request.keys() and request["status"] == 200
    assert live.token not in live.log


def test_health_needs_no_token_and_prometheus_reads_metrics(client: httpx.Client, shared_server: Live) -> None:
    assert httpx.get(f"{shared_server.url}/healthz").json()["status"] == "ok"
    send(client, make(client, "measured"), start())
    text = client.get("/metrics").text
    assert 'clew_request_seconds_bucket{route="/api/v1/runs/{number}/records",le="+Inf"}' in text
    assert all(line.startswith("#") or len(line.rsplit(" ", 1)) == 2 for line in text.splitlines())


def test_actions_are_logged(client: httpx.Client, person: Any) -> None:
    ada = person("ada")
    run = make(ada, "deeds")
    ada.put(f"/api/v1/runs/{run}/tags", json={"tags": ["paper"]})
    ada.delete(f"/api/v1/runs/{run}")
    name = ada.get("/api/v1/me").json()["name"]
    result = [entry for entry in client.get("/api/v1/audit").json()["items"] if entry["user_name"] == name]
    assert [entry["action"] for entry in result] == ["delete", "tag", "make run"]
    assert result[0]["what"] == f"run:{run}" and result[0]["address"] == "127.0.0.1"


def test_search_and_tags_find_runs(person: Any) -> None:
    ada = person("ada")
    first, second = make(ada, "gnn-wide"), make(ada, "transformer")
    ada.put(f"/api/v1/runs/{second}/tags", json={"tags": ["paper", "best"]})

    def run_ids(**request: Any) -> list[int]:
        return [row["id"] for row in ada.get("/api/v1/runs", params=request).json()["items"]]

    assert run_ids(search="GNN") == [first] and run_ids(search="100%") == [] and run_ids(search="gnn_wide") == []
    assert run_ids(tag=["paper", "best"]) == [second] and run_ids(tag=["paper", "other"]) == []
    assert run_ids(search="paper") == [second] and run_ids(state="failed") == []
    response = ada.get("/api/v1/runs", params={"limit": 1}).json()
    assert [response["items"][0]["id"], response["next"]] == [second, second]
    assert run_ids(limit=1, after=second) == [first]


SECONDS = float(os.environ.get("CLEW_KILL_SECONDS", "5"))
"""Seconds of load; `CLEW_KILL_SECONDS=120` is the full test, with a kill every 10 s."""


def test_every_point_is_there_once_though_the_server_is_killed(
    server: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEW_SERVER", server.url)
    monkeypatch.setenv("CLEW_TOKEN", server.token)
    finished, kills = threading.Event(), []

    def kill() -> None:
        while not finished.wait(min(10.0, SECONDS / 6)):
            server.stop(signal.SIGKILL)
            kills.append(time.time())
            server.start()

    killer = threading.Thread(target=kill)
    killer.start()
    (tmp_path / "runs").mkdir()
    response = load.report(tmp_path / "runs", load.Schedule(time.time(), SECONDS), first=0, runs=20)
    finished.set()
    killer.join()
    assert kills and response["written"] == pytest.approx(20 * SECONDS * load.RATE, rel=0.1)
    with server.client() as client:
        rows = client.get("/api/v1/runs", params={"limit": 100}).json()["items"]
        assert len(rows) == 20
        for row in rows:
            here = list(Run(tmp_path / "runs" / row["name"]).records())
            stored = client.get(f"/api/v1/runs/{row['id']}/records", params={"limit": 1000}).json()["items"]
            assert stored == here[:1000]
            assert loss(client, row["id"])["count"] == len(here) - 2


@pytest.mark.parametrize(
    ("jobs", "words"),
    [(0, "no job runs or waits"), (2, "Waiting jobs: 2. Each starts when the server and an agent run again")],
)
def test_stopping_says_what_becomes_of_the_jobs(jobs: int, words: str, tmp_path: Path) -> None:
    live = Live(tmp_path / "service").start()
    environment = {**os.environ, "CLEW_SERVER": live.url, "CLEW_TOKEN": live.token}
    for _ in range(jobs):
        command = [*CLEW, "submit", "tagger", "--dataset", "/data/jets"]
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=120)
    assert live.process is not None and live.process.stdout is not None
    live.process.send_signal(signal.SIGINT)
    assert words in live.process.stdout.read().replace("\n", " ")
    assert live.process.wait(30) == 0
    live.process.stdout.close()
