"""Pushing runs to a server: during training, later, again, and despite failures of the server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

import clew
from clew import Dataset, Run, settings
from clew.client.connection import Connection
from clew.client.credentials import Credentials, credentials, log_in, log_out, login_file
from clew.client.server_proof import PATH as IDENTITY
from clew.errors import ConfigError, ServerError
from clew.runs.push import Pusher, identity, pending
from clew.runs.push_process import try_push as attempt
from tests.server.conftest import Live

CLEW = [sys.executable, "-c", "from clew.cli.main import run; run()"]


@pytest.fixture
def link(shared_server: Live) -> Iterator[Connection]:
    with Connection(shared_server.url, shared_server.token, retry_seconds=5.0) as result:
        yield result


def _count(client: httpx.Client, number: int, run: Run) -> None:
    """Check that the server has every record of the run folder exactly once."""
    streams = client.get(f"/api/v1/runs/{number}/records/streams").json()["next"]
    assert set(streams) == {path.stem for path in run.records_folder.glob("*.jsonl") if path.stat().st_size}
    for name in streams:
        stored, after = [], -1
        while after is not None:
            response = client.get(f"/api/v1/runs/{number}/records", params={"stream": name, "after": after}).json()
            stored += response["items"]
            after = response["next"]
        assert stored == list(run.records(name))


def _started_run(path: Path) -> Run:
    """A run with one record."""
    run = Run.create(path, config={"recipe": "r"}, environment={"host": "h"})
    with run.writer("rank-0") as writer:
        writer.write("start", schema=1, host="h", pid=1, rank=0, ranks=1)
    return run


def test_a_run_that_never_met_a_server_is_brought_in_whole(client: httpx.Client, link: Connection, run: Run) -> None:
    pusher = Pusher(run, link)
    assert pusher.push() == sum(len(list(run.records(path.stem))) for path in run.records_folder.glob("*.jsonl"))
    assert pusher.push_files() >= 3
    assert pusher.number is not None
    _count(client, pusher.number, run)
    row = client.get(f"/api/v1/runs/{pusher.number}").json()
    assert (row["state"], row["epochs_done"]) == ("finished", 2)
    assert row["metrics"] == pytest.approx(run.last("validation")["metrics"])  # type: ignore[index]
    assert row["config"]["model"]["hidden"] == 16
    names = {each["name"]: each for each in client.get(f"/api/v1/runs/{pusher.number}/artefacts").json()["items"]}
    assert {"checkpoints/best.safetensors", "checkpoints/last.safetensors"} < names.keys()
    assert any(name.startswith("plots/") and each["kind"] == "plot" for name, each in names.items())
    response = client.get(f"/api/v1/runs/{pusher.number}/artefacts/checkpoints/best.safetensors")
    assert response.content == run.checkpoint("best").read_bytes()


def test_runs_started_in_the_same_microsecond_are_two(
    link: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clew.runs.records.time.time", lambda: 1e9)
    numbers = set()
    for name in ("one", "other"):
        pusher = Pusher(_started_run(tmp_path / name), link)
        assert pusher.push() == 1
        numbers.add(pusher.number)
    assert len(numbers) == 2


def test_a_run_of_an_earlier_version_is_itself_as_before(link: Connection, tmp_path: Path) -> None:
    run = Run.create(tmp_path / "early", config={"recipe": "r"}, environment={"host": "h"})
    line = '{"seq": 0, "time": 1.5, "kind": "start", "schema": 1, "host": "h", "pid": 1, "rank": 0, "ranks": 1}\n'
    run.records_folder.mkdir(exist_ok=True)
    (run.records_folder / "rank-0.jsonl").write_text(line)
    assert identity(run) == "1af134e4f6f2cbff07cb7e8db2e234b5"
    assert (Pusher(run, link).push(), Pusher(run, link).push()) == (1, 0)


def test_pushing_again_sends_nothing_even_from_a_copy(link: Connection, run: Run, run_copy: Run) -> None:
    first, second = Pusher(run, link), Pusher(run_copy, link)
    first.push()
    first.push_files()
    assert (second.push(), second.push_files()) == (0, 0)
    assert first.number == second.number


def test_tags_and_group_reach_a_run_that_the_server_had_already(
    client: httpx.Client, link: Connection, run: Run
) -> None:
    client.post("/api/v1/groups", json={"name": "pushers"})
    for tags, group in ((("one",), None), (("two",), "pushers"), ((), None)):
        pusher = Pusher(run, link, group, tags)
        pusher.push()
    row = client.get(f"/api/v1/runs/{pusher.number}").json()
    assert {"one", "two"} <= {*row["tags"]} and row["group_name"] == "pushers"


def test_a_deleted_run_is_pushed_no_more(client: httpx.Client, link: Connection, run_copy: Run) -> None:
    with (run_copy.records_folder / "rank-0.jsonl").open("r+") as file:
        lines = file.read().splitlines(keepends=True)
        file.seek(0)
        file.write(lines[0].replace('"time"', '"copied": true, "time"', 1))  # a separate run
        file.truncate()
    pusher = Pusher(run_copy, link)
    assert attempt(pusher, last=False) and not pusher.gone
    assert client.delete(f"/api/v1/runs/{pusher.number}").status_code == 204
    with (run_copy.records_folder / "rank-0.jsonl").open("a") as file:
        file.write(lines[1])
    assert attempt(pusher, last=False) and pusher.gone
    assert attempt(pusher, last=True)
    assert client.get(f"/api/v1/runs/{pusher.number}").status_code == 404


def test_training_reports_while_it_runs_and_continues_without_the_server(
    server: Live, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEW_SERVER", server.url)
    monkeypatch.setenv("CLEW_TOKEN", server.token)
    small = settings.load_settings("tracking", ["model.hidden=8", "train.epochs=1"])
    trained = clew.train(small.recipe, dataset, config=small.train, output=tmp_path / "first")
    with server.client() as client:
        (row,) = client.get("/api/v1/runs").json()["items"]
        assert (row["name"], row["state"]) == ("first", "finished")
        _count(client, row["id"], trained)
    assert pending(trained) == 0
    server.stop(signal.SIGKILL)
    monkeypatch.setattr("clew.runs.push_process.GRACE", 1.0)
    away = clew.train(small.recipe, dataset, config=small.train, output=tmp_path / "second")
    assert away.state == "finished"
    server.start()
    response = subprocess.run([*CLEW, "runs", "push", str(away.path)], capture_output=True, text=True, check=True)
    assert "is run 2" in response.stdout
    with server.client() as client:
        _count(client, 2, away)


def test_what_a_killed_training_recorded_arrives(
    shared_server: Live, client: httpx.Client, dataset: Dataset, tmp_path: Path
) -> None:
    server_environment = {"CLEW_SERVER": shared_server.url, "CLEW_TOKEN": shared_server.token}
    options = ["--dataset", str(dataset.path), "--output", str(tmp_path / "killed"), "--epochs", "1000"]
    training = subprocess.Popen([*CLEW, "train", "tracking", *options], env={**os.environ, **server_environment})
    run = Run(tmp_path / "killed")
    try:
        _until(lambda: run.last("validation") is not None)
    finally:
        training.kill()
        training.wait()
    row = _until(lambda: next((r for r in _rows(client) if (r["name"], r["state"]) == ("killed", "interrupted")), None))
    _count(client, row["id"], run)


def _rows(client: httpx.Client) -> list[dict[str, Any]]:
    return list(client.get("/api/v1/runs").json()["items"])


def _until(result: Any) -> Any:
    for _ in range(1200):
        if value := result():
            return value
        time.sleep(0.1)
    raise AssertionError("it did not happen")


class BusyProxy:
    """In front of the real server: answers 429 to the first requests, and passes on the others."""

    def __init__(self, server: Live, refusals: int) -> None:
        proxy, self.refusals = self, refusals

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"  # connections stay open

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if proxy.refusals > 0 and not self.path.startswith(IDENTITY):
                    proxy.refusals -= 1
                    status, content = 429, b'{"error": "too busy"}'
                else:
                    headers = {
                        name: self.headers[name] for name in ("Authorization", "Content-Type") if self.headers[name]
                    }
                    passed = httpx.request(self.command, server.url + self.path, content=body, headers=headers)
                    status, content = passed.status_code, passed.content
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_PUT = do_PATCH = answer  # noqa: N815 - names of the library

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def busy(shared_server: Live) -> Iterator[BusyProxy]:
    proxy = BusyProxy(shared_server, 2)
    yield proxy
    proxy.close()


def test_a_busy_server_is_asked_again(busy: BusyProxy, shared_server: Live) -> None:
    with Connection(busy.url, shared_server.token, retry_seconds=30.0, any_address=True) as link:
        assert link.call("GET", "/me")["admin"]
    assert busy.refusals == 0


def test_a_busy_server_does_not_end_the_push_in_the_background(
    busy: BusyProxy, shared_server: Live, client: httpx.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEW_CONFIG", str(tmp_path / "config"))
    run = _started_run(tmp_path / "pushed")
    log_in(Credentials(busy.url, shared_server.token, shared_server.url.removeprefix("http://")))
    server = {"CLEW_SERVER": busy.url, "CLEW_TOKEN": shared_server.token}
    command = [sys.executable, "-m", "clew.runs.push_process", str(run.path)]
    subprocess.run(command, env={**os.environ, **server}, input=b"", check=True, timeout=100)
    facts = json.loads(run.push_file.read_text())
    assert (facts["error"], facts["next"]) == ("", {"rank-0": 1})
    _count(client, facts["run"], run)


def test_the_note_of_a_push_holds_no_secret(tmp_path: Path) -> None:
    run = _started_run(tmp_path / "noted")
    with Connection("http://ada:hidden@127.0.0.1:9", "clew_x", retry_seconds=0.0) as link:
        Pusher(run, link).note(error="no answer from http://ada:hidden@127.0.0.1:9/?token=hidden")
    text = run.push_file.read_text()
    assert "127.0.0.1:9" in text and "hidden" not in text


def test_a_server_that_says_no_says_why(shared_server: Live, run_copy: Run) -> None:
    with (
        Connection(shared_server.url, "clew_wrong", retry_seconds=0.0) as link,
        pytest.raises(ServerError, match="not good here"),
    ):
        Pusher(run_copy, link).push()


def test_credentials_come_from_the_environment_then_from_the_login(monkeypatch: pytest.MonkeyPatch) -> None:
    assert credentials() is None
    log_in(Credentials("http://here:1", "clew_a"))
    assert login_file().stat().st_mode & 0o777 == 0o600
    assert credentials() == Credentials("http://here:1", "clew_a")
    monkeypatch.setenv("CLEW_SERVER", "http://there:2")
    with pytest.raises(ConfigError, match="CLEW_TOKEN"):
        credentials()
    monkeypatch.setenv("CLEW_TOKEN", "clew_b")
    assert credentials() == Credentials("http://there:2", "clew_b")
    monkeypatch.setenv("CLEW_SERVER", "")
    assert credentials() is None
    monkeypatch.delenv("CLEW_SERVER")
    monkeypatch.delenv("CLEW_TOKEN")
    login_file().write_text("{")
    with pytest.raises(ConfigError, match="damaged"):
        credentials()
    assert log_out() and credentials() is None


def test_log_in_make_a_token_and_revoke_it(shared_server: Live, tmp_path: Path) -> None:
    def run_clew(*arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
        home = {**os.environ, "CLEW_CONFIG": str(tmp_path)}
        return subprocess.run([*CLEW, *arguments], capture_output=True, text=True, env=home, **more)

    assert "logged in" in run_clew("login", shared_server.url, "--token", shared_server.token).stdout
    piped = run_clew("login", shared_server.url, input=f"{shared_server.token}\n")
    assert "logged in" in piped.stdout and not piped.stderr
    assert run_clew("login", shared_server.url, input="").returncode == 2
    text = run_clew("token", "create", "laptop", "--scope", "read", check=True).stdout.split()[0]
    listed = run_clew("token", "list", check=True).stdout
    number = next(line.split()[0] for line in listed.splitlines() if text[:10] in line)
    with shared_server.client(text) as client:
        assert client.get("/api/v1/me").json()["scopes"] == ["read"]
        assert run_clew("token", "revoke", number).returncode == 0
        assert client.get("/api/v1/me").status_code == 401
    missing = run_clew("token", "create", "cluster", "--user", "eve")
    assert missing.returncode == 2 and "no such user: eve; administrators create users" in missing.stderr
    wrong = run_clew("login", shared_server.url, "--token", "clew_wrong")
    assert wrong.returncode == 2 and "not good here" in wrong.stderr
    assert json.loads((tmp_path / "login.json").read_text())["token"] == shared_server.token


def test_a_run_of_the_server_is_listed_and_fetched(
    shared_server: Live, link: Connection, run: Run, tmp_path: Path
) -> None:
    pusher = Pusher(run, link)
    pusher.push()
    pusher.push_files()
    environment = {**os.environ, "CLEW_SERVER": shared_server.url, "CLEW_TOKEN": shared_server.token, "COLUMNS": "200"}

    def invoke(*words: str, code: int = 0) -> str:
        command = [*CLEW, *words]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    lines = invoke("runs", "list", "--server", "--state", "finished").splitlines()
    assert any(line.split()[:3] == [str(pusher.number), run.name, "finished"] for line in lines)
    assert pusher.number in [each["id"] for each in json.loads(invoke("runs", "list", "--server", "--json"))]
    assert "no such state" in invoke("runs", "list", "--server", "--state", "done", code=2)

    assert f"runs/{run.name}" in invoke("runs", "get", str(pusher.number))
    fetched = Run.open(tmp_path / "runs" / run.name)
    assert fetched.state == "finished" and list(fetched.records()) == list(run.records())
    assert fetched.checkpoint("best").read_bytes() == run.checkpoint("best").read_bytes()
    assert fetched.dataset_file.read_bytes() == run.dataset_file.read_bytes()
    assert "finished" in invoke("runs", "show", run.name)
    assert "exists already; name another folder with --output" in invoke("runs", "get", str(pusher.number), code=2)
    invoke("runs", "get", "9999999", code=2)
