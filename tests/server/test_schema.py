"""Schemathesis over the whole schema: no input gives a 5xx answer."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.conftest import Live

pytest.importorskip("schemathesis", reason="schemathesis is not installed")
LONG = "CLEW_FUZZ" in os.environ
EXAMPLES = os.environ.get("CLEW_FUZZ", "5")
"""Examples per route; `CLEW_FUZZ=200` tests longer, and every edge of every parameter."""
LEFT_OUT = r"/events$|/poll$|/session$|/tokens/\{"
"""Routes that are not tested: streams and polls, which do not end, and routes that revoke the token of the test."""
THERE = '[parameters]\n"path.number" = 1\n"path.study" = 1\n"path.job" = 1\n"path.agent" = 1\n"path.trial" = 0\n'
"""Objects that exist, so that more than "no such run" is tested."""


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    live = Live(tmp_path_factory.mktemp("fuzzed") / "service").start()
    with live.client() as client:
        assert client.post("/api/v1/runs", json={"uid": "one", "name": "one"}).status_code == 201
        steps = [{"seq": n, "time": 1.0 + n, "kind": "step", "loss": {"loss": 0.1 * n}, "step": n} for n in range(50)]
        client.post("/api/v1/runs/1/records", json={"streams": {"rank-0": steps}})
        client.put("/api/v1/runs/1/artefacts/a", content=b"content")
        client.post("/api/v1/datasets", json={"key": "k", "name": "n", "location": "/there"})
        client.post("/api/v1/benchmarks", json={"name": "n", "document": {}})
        client.post("/api/v1/groups", json={"name": "g"})
    yield live
    live.stop()


@pytest.mark.long
@pytest.mark.parametrize("there", [False, True], ids=["anything", "what is there"])
def test_no_route_breaks(fuzzed: Live, tmp_path: Path, there: bool) -> None:
    (tmp_path / "schemathesis.toml").write_text(THERE if there else "")
    words = ["--checks", "not_a_server_error", "--exclude-path-regex", LEFT_OUT, "--max-examples", EXAMPLES]
    words += ["--phases", "coverage,fuzzing" if LONG else "fuzzing", "--request-timeout", "60", "--no-color"]
    words += ["--exclude-method", "DELETE"] if there else []
    words += ["--header", f"Authorization: Bearer {fuzzed.token}", "--seed", "1", "--generation-database", "none"]
    tool = str(Path(sys.executable).with_name("schemathesis"))
    done = subprocess.run(
        [tool, "run", f"{fuzzed.url}/api/v1/openapi.json", *words], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout[-6000:]
    assert "traceback" not in fuzzed.log.lower(), fuzzed.log[-3000:]
