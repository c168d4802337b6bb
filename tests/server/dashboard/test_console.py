"""The page of a run shows what a training in the foreground prints, while it prints it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.server.conftest import Live
from tests.server.dashboard.conftest import Visitor
from tests.server.test_records import make, send, start

CLEW = [sys.executable, "-c", "from clew.cli.main import run; run()"]
NET = """
import time
from pathlib import Path
from torch import nn


class Net(nn.Linear):
    def forward(self, x):
        for path in sorted(Path(".").glob("say-*")):
            print("it says", path.name, "<b>loud</b>")
            path.unlink()
        time.sleep(0.01)
        return super().forward(x)


def build():
    return Net(2, 1)
"""


@pytest.mark.long
@pytest.mark.timeout(300)
def test_printed_lines_appear_while_a_run_trains(visitor: Visitor, shared_server: Live, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET)
    x = np.random.default_rng(0).normal(size=(200, 2)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x, y=x.sum(axis=1))
    (tmp_path / "say-one").touch()
    login = {"CLEW_SERVER": shared_server.url, "CLEW_TOKEN": shared_server.token, "OMP_NUM_THREADS": "1"}
    columns = ["--train", "data.npz", "--features", "x", "--labels", "y", "--loss", "mse"]
    command = [*CLEW, "train", "--model", "net.py:build", *columns, "--output", "runs/says", "--epochs", "100000"]
    training = subprocess.Popen(command, cwd=tmp_path, env={**os.environ, **login}, stdout=subprocess.DEVNULL)
    page = visitor.page
    try:
        with page.expect_navigation(url="**/runs/*", timeout=120_000):
            visitor.open("/runs?q=says")
            page.evaluate("() => setInterval(() => dispatchEvent(new Event('clew:refresh')), 500)")
            page.click("table.cards a:has-text('says')", timeout=120_000)
        page.click("nav.tabs a:has-text('Log')")
        page.wait_for_function("() => document.querySelector('pre.log').innerText.includes('it says say-one <b>loud')")
        (tmp_path / "say-two").touch()
        page.wait_for_function("() => document.querySelector('pre.log').innerText.includes('it says say-two')")
    finally:
        training.send_signal(signal.SIGTERM)
        training.wait(60)
    page.wait_for_selector("h1 .state.stopped")
    page.wait_for_function("() => document.querySelector('pre.log').innerText.includes('clew: ')")
    text = page.inner_text("pre.log")
    assert [text.count(each) for each in ("say-one", "say-two")] == [1, 1]
    visitor.open(page.url.removeprefix(shared_server.url))
    assert "it says say-two <b>loud</b>" in page.inner_text("pre.log") and visitor.faults == []


def test_lines_of_ranks_are_in_order_and_only_their_owner_reads_them(client: httpx.Client, person: object) -> None:
    run = make(client, "printed")
    send(client, run, start())
    for stream, moment in (("console", 1001.0), ("console-1", 1002.0)):
        lines = [{"seq": n, "time": moment + 2 * n, "kind": "output", "message": f"{stream} {n}"} for n in range(3)]
        send(client, run, *lines, stream=stream)
    token = client.headers["Authorization"].removeprefix("Bearer ")
    with httpx.Client(base_url=client.base_url, headers={"Origin": str(client.base_url).rstrip("/")}) as page:
        page.post("/login", data={"token": token, "next": "/"})
        first = page.get(f"/runs/{run}/console").json()
        ranks = [f"{prefix}{stream} {n}" for n in range(3) for prefix, stream in _PRINTED]
        assert first["text"].splitlines() == ranks
        assert page.get(f"/runs/{run}/console", params={"after": first["next"]}).json() == {**first, "text": ""}
        send(client, run, {"seq": 3, "time": 1010.0, "kind": "output", "message": "late"}, stream="console-1")
        after = {"after": first["next"] + ",x:y,:,99999:1"}
        assert page.get(f"/runs/{run}/console", params=after).json()["text"] == "[rank 1] late\n"
        stranger = person("stranger")  # type: ignore[operator]
        page.post("/login", data={"token": stranger.headers["Authorization"].removeprefix("Bearer "), "next": "/"})
        assert page.get(f"/runs/{run}/console").status_code == 404


_PRINTED = (("", "console"), ("[rank 1] ", "console-1"))
