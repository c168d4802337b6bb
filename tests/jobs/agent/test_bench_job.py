"""A benchmark as a job: the real command on the machine of an agent, its figures in the benchmarks of the server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from clew import Client
from clew.bench.workload import hepscore
from tests.jobs.agent.conftest import StartAgent
from tests.jobs.agent.test_jobs import command

SMALL = Path(__file__).parents[2] / "bench" / "recipes" / "small.py"
ClientFor = Callable[..., Client]


@pytest.mark.long
def test_a_benchmark_is_submitted_and_its_figures_are_stored(
    client_for: ClientFor, start_agent: StartAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEW_CACHE", str(tmp_path / "cache"))
    ada = client_for("ada")
    start_agent(ada, clew=True)
    words = f"particleflow --recipe {SMALL} --events 16 --epochs 1 --batch-size 8 --threads 1"
    finished = command(ada, "submit", words, "--kind", "bench", "--output", "speed", "--follow")
    assert finished.returncode == 0, finished.stderr + finished.stdout
    assert "events/s" in finished.stdout and ": done" in finished.stdout
    benchmarks = {row["name"]: row for row in ada.connection.call("GET", "/benchmarks")["items"]}
    assert benchmarks.keys() == {"speed small_summary", "speed report"}
    summary = hepscore.WorkloadSummary.model_validate(benchmarks["speed small_summary"]["document"])
    assert summary.report.log == "ok" and summary.report.wl_scores["training"] > 0
    failed = command(ada, "submit", words + " --set train.best.metric=nothing", "--kind", "bench", "--wait")
    assert (
        failed.returncode == 1 and "the workload failed" in command(ada, "logs", next(iter(ada.jobs.list())).id).stdout
    )
