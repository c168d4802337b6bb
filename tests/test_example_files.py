"""Examples that are not notebooks: they run here, or are checked as far as they can be."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from clew.server.config import ServiceConfig
from tests.cli import done
from tests.server.conftest import Live

EXAMPLES = Path(__file__).parents[1] / "examples"
pytestmark = pytest.mark.timeout(300)


def _stand_in(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/bash\n{text}\n")
    (folder / name).chmod(0o755)


@pytest.mark.parametrize(("code", "requeued"), [(0, False), (75, True), (2, False)])
def test_the_slurm_script_returns_to_the_queue_only_if_it_was_stopped(
    code: int, requeued: bool, tmp_path: Path
) -> None:
    _stand_in(tmp_path, "srun", 'echo "$@" >> srun.log; mkdir -p runs/first; touch runs/first/config.yaml; exit $CODE')
    _stand_in(tmp_path, "scontrol", 'echo "$@" >> scontrol.log')
    environment = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "SLURM_JOB_NAME": "first",
        "SLURM_JOB_ID": "7",
        "CODE": str(code),
    }
    for _ in range(2):
        ended = subprocess.run([EXAMPLES / "slurm.sh"], cwd=tmp_path, env=environment, check=False)
        assert ended.returncode == code
    first, second = (tmp_path / "srun.log").read_text().splitlines()
    assert first == "clew train tracking --dataset dataset --output runs/first"
    assert second == "clew train --resume runs/first"
    assert (tmp_path / "scontrol.log").exists() == requeued


def test_shellcheck_finds_nothing_in_the_slurm_script() -> None:
    tool = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if tool is None:
        pytest.skip("shellcheck is not installed")
    assert subprocess.run([tool, EXAMPLES / "slurm.sh"], check=False).returncode == 0


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    server = Live(tmp_path / "service").start()
    yield server
    server.stop()


def test_the_optimiser_through_rest_finds_the_minimum(live: Live) -> None:
    words = [sys.executable, str(EXAMPLES / "rest_optimiser.py"), live.url, live.token]
    ended = subprocess.run(words, capture_output=True, text=True, check=False, timeout=200)
    assert ended.returncode == 0, ended.stderr
    (value,) = re.findall(r'"values": \[([\d.e-]+)\]', ended.stdout)
    assert float(value) < 20 and "import clew" not in (EXAMPLES / "rest_optimiser.py").read_text()


def test_the_commands_of_the_workflow_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    job = yaml.safe_load((EXAMPLES / "github-actions.yml").read_text())["jobs"]["train"]
    done("init", "my_tagger")
    commands = [step["run"].replace("$RECIPE", job["env"]["RECIPE"]) for step in job["steps"] if "run" in step]
    assert commands[0].startswith("pip install")
    for command in commands[1:]:
        done(*shlex.split(command)[1:])
    assert Path(job["steps"][-1]["with"]["path"]).exists()


def test_the_settings_of_the_composed_server_are_valid() -> None:
    folder = EXAMPLES / "compose"
    config = ServiceConfig(**yaml.safe_load((folder / "server.yaml").read_text()))
    services = yaml.safe_load((folder / "compose.yaml").read_text())["services"]
    assert config.database == f"postgresql://{services['database']['environment']['POSTGRES_USER']}@database/clew"
    assert services["server"]["ports"] == [f"127.0.0.1:{config.port}:{config.port}"]
    assert services["server"]["command"][:2] == ["serve", "--no-agent"] and config.folder == Path("/var/lib/clew")
    secrets = [value for each in services.values() for value in each.get("environment", {}).values() if "PASS" in value]
    assert all(value.startswith("${") for value in secrets)
