"""Both images, built by `containers/build.sh`: the demo, the HEPscore workload, and jobs of agents and Slurm in them.

Podman runs them, as Debian has no Apptainer.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clew import Client, Dataset, Run
from clew.bench.workload import hepscore
from clew.core.config import to_yaml
from tests.cli import done
from tests.jobs.agent.conftest import AgentProcess
from tests.server.conftest import Live
from tests.sites import long
from tests.sites.cluster import Cluster
from tests.sites.conftest_images import CLEW, EVENTS, WORKLOAD, podman
from tests.sites.conftest_slurm import PROFILE
from tests.sites.test_slurm import LINE, SMALL, flat, until

__all__ = ["flat"]

pytestmark = [long, pytest.mark.timeout(1800), pytest.mark.usefixtures("images")]
REPORTS = """
import os, time
from pathlib import Path
import clew
clew.distributed.setup()
print("inside", Path("/opt/clew/requirements.lock").exists() and not Path({host!r}).exists())
clew.log(loss=1.0)
print("digest", os.environ["CLEW_IMAGE_DIGEST"], flush=True)
"""
WAITS = "import time; memory = bytearray(600_000_000); print('waits', flush=True); time.sleep(600)"


@pytest.fixture
def agent(service: Live, ada: Client, tmp_path: Path) -> Iterator[AgentProcess]:
    """An agent of this machine."""
    command = [sys.executable, "-m", "clew", "agent", "--server", service.url, "--folder", str(tmp_path / "agent")]
    started = AgentProcess(
        [*command, "--name", tmp_path.name[-40:].lstrip("_")], service.token, tmp_path / "agent"
    ).start()
    yield started
    started.end()


def submit(client: Client, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """Submit a job in the image with the command line; returns its number."""
    token = client.connection.http.headers["Authorization"].removeprefix("Bearer ")
    monkeypatch.setenv("CLEW_TOKEN", token)
    text = done("submit", *words, "--container", CLEW, "--server", client.server, "--json")
    return int(json.loads(text)["id"])


def log(client: Client, job: int) -> str:
    return "".join(client.jobs.log(job))


def digest(image: str) -> str:
    return podman("image", "inspect", "--format={{.Digest}}", image).stdout.strip()


def test_the_demo_runs_in_its_image(tmp_path: Path) -> None:
    words = ("demo", "--events", "100", "--epochs", "1", "--output", "demo")
    output = podman("run", "--rm", f"--volume={tmp_path}:/work", CLEW, *words, timeout=1200).stdout
    run = Run.open(tmp_path / "demo" / "runs" / "tracking-001")
    assert "Done in" in output and run.state == "finished"
    assert (run.path / "report.html").exists() and run.evaluations()


def test_the_workload_runs_in_its_image_on_the_events_in_it(tmp_path: Path) -> None:
    check = ("--entrypoint=sha256sum", "--workdir=/opt/clew/events", WORKLOAD)
    podman("run", "--rm", *check, "--check", "--quiet", "SHA256SUMS")
    listed = podman("run", "--rm", *check, "SHA256SUMS").stdout.split()[0]
    variables = f"--env=CLEW_IMAGE_DIGEST={digest(WORKLOAD)}"
    options = ("-W", "--copies", "1", "--threads", "1", "--events", "16", "--extra-args", "--epochs 1 --batch-size 4")
    podman("run", "--rm", f"--volume={tmp_path}:/results", variables, WORKLOAD, *options, timeout=1200)
    saved = hepscore.read_summary(tmp_path / "particleflow_summary.json")
    report = json.loads((tmp_path / "report.json").read_text())
    assert saved.report.log == "ok" and saved.report.wl_scores["training"] > 0
    assert saved.app.bmkdata_checksum == report["hashes"]["fixed_events"] == listed
    assert report["hashes"]["container"] == digest(WORKLOAD) and saved.app.containment == "docker"
    assert report["data"]["events"] == {"train": 16, "val": 4} and EVENTS >= 20
    assert {"cpu", "gpus"} == set(report["environment"]["hardware"])


def test_an_agent_runs_a_script_in_an_image(
    agent: AgentProcess, ada: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    script = tmp_path / "mine" / "reports.py"
    script.write_text(REPORTS.format(host=str(Path(__file__))))
    job = submit(ada, monkeypatch, str(script), "--kind", "script")
    ended = ada.jobs.wait(job, seconds=600)
    assert ended.state == "done", log(ada, job)
    text = log(ada, job)
    assert "inside True" in text and f"digest {digest(CLEW)}" in text
    assert ended.run is not None


def test_an_agent_trains_in_an_image_and_the_model_comes_back(
    agent: AgentProcess, ada: Client, flat: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submit(ada, monkeypatch, LINE, "--dataset", str(flat.path), "--epochs", "1", "--workers", "2", *SMALL)
    ended = ada.jobs.wait(job, seconds=600)
    assert ended.state == "done", log(ada, job)
    assert ended.run is not None and ended.peak_memory


@pytest.mark.parametrize("limit", ["memory", "cancel"])
def test_a_job_in_an_image_can_be_ended(
    limit: str, agent: AgentProcess, ada: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "waits.py"
    script.write_text(WAITS)
    job = submit(
        ada, monkeypatch, str(script), "--kind", "script", *(("--memory", "400M") if limit == "memory" else ())
    )
    if limit == "cancel":
        until(lambda: "waits" in log(ada, job), seconds=300)
        ada.jobs.cancel(job)
    ended = ada.jobs.wait(job, seconds=600)
    assert ended.state == ("failed" if limit == "memory" else "cancelled"), ended
    assert limit == "cancel" or "its limit is 0.40 GB" in ended.reason
    until(lambda: not podman("ps", "--quiet").stdout, seconds=60)


def test_slurm_trains_in_an_image_on_two_nodes(site: Cluster, flat: Dataset, tmp_path: Path) -> None:
    shared = [f"--volume={folder}:{folder}" for folder in (flat.path.parent, Path(LINE).parent)]
    profile = {**PROFILE, "container_runtime": "podman", "container_options": shared}
    (tmp_path / "sites" / "here.yaml").write_text(to_yaml(profile))
    words = ("train", LINE, "--dataset", str(flat.path), "--epochs", "1", *SMALL, "--workers", "2", "--nodes", "2")
    text = done(*words, "--output", "runs/two", "--on", "here", "--container", CLEW, "--follow")
    run = Run.open("runs/two")
    assert "finished: runs/two" in text and run.state == "finished"
    assert json.loads((run.path / "environment.json").read_text())["python"] == "3.11.2"
    assert {(run.last("start", stream) or {})["ranks"] for stream in run.streams()} == {2}
