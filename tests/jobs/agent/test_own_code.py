"""A user's own code as a job: recipes with modules of their own, and any script."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from clew import Client, Dataset
from clew.client.submission import submission
from clew.errors import ConfigError
from tests.jobs.agent.conftest import StartAgent
from tests.jobs.agent.test_jobs import command
from tests.tuning import RECIPE

ClientFor = Callable[..., Client]
TRAIN = """
import argparse, os, sys
from pathlib import Path
import torch, clew
from helpers.numbers import falling

arguments = argparse.ArgumentParser()
arguments.add_argument("--lr", type=float)
arguments.add_argument("--stop-once", action="store_true")
options = arguments.parse_args()
session = clew.distributed.setup(lr=options.lr)
total = torch.ones(1)
if session.ranks > 1:
    torch.distributed.all_reduce(total)
checkpoint = Path("checkpoint.txt")
begin = int(checkpoint.read_text()) if checkpoint.exists() else 0
for step in range(begin, 4):
    clew.log(loss=falling(step))
    if options.stop_once and step == 1:
        checkpoint.write_text(str(step + 1))
        clew.distributed.close(stopped=True)
        sys.exit(75)
clew.log(val_accuracy=0.75)
if session.rank == 0:
    Path("weights.txt").write_text("1 2 3")
    clew.artefact("weights.txt")
print("ranks", int(total), "lr", options.lr, "in", os.environ["WORLD_SIZE"] if session.ranks > 1 else 1)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    folder = tmp_path / "mine"
    (folder / "helpers").mkdir(parents=True)
    (folder / "train.py").write_text(TRAIN)
    (folder / "helpers" / "numbers.py").write_text("def falling(step):\n    return 1.0 / (step + 1)\n")
    return folder / "train.py"


@pytest.mark.long
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_script_runs_as_a_job_and_its_metrics_and_files_come_back(
    ranks: int, client_for: ClientFor, start_agent: StartAgent, script: Path, tmp_path: Path
) -> None:
    ada = client_for(f"ada{ranks}")
    start_agent(ada, clew=True)
    words = ("submit", "--kind", "script", script.name, "--workers", ranks, "--follow", "--", "--lr", "0.1")
    finished = command(ada, *words, cwd=script.parent)
    assert finished.returncode == 0, finished.stderr + finished.stdout
    assert f"ranks {ranks} lr 0.1 in {ranks}" in finished.stdout
    (job,) = ada.jobs.list()
    assert (job.kind, job.name, job.state) == ("script", "train", "done") and job.run is not None
    run = ada.runs.get(job.run)
    assert run.state == "finished" and run.metrics["accuracy"] == 0.75
    assert "artefacts/weights.txt" in {each.name for each in ada.artefacts.list(run.id)}
    saved = ada.artefacts.download(run.id, "artefacts/weights.txt", tmp_path / "weights.txt")
    assert saved.read_text() == "1 2 3"


@pytest.mark.long
def test_a_script_that_stops_early_continues_its_run(
    client_for: ClientFor, start_agent: StartAgent, script: Path
) -> None:
    ada = client_for("ada")
    start_agent(ada, clew=True)
    arguments = ["--lr", "0.1", "--stop-once"]
    job = ada.jobs.submit(submission(str(script), kind="script", arguments=arguments, requeue=1))
    ended = ada.jobs.wait(job.id, seconds=200)
    assert (ended.state, ended.attempt) == ("done", 2) and ended.run is not None
    assert [each.job for each in ada.runs.list()] == [job.id]
    records = ada.connection.call("GET", f"/runs/{ended.run}/records", params={"stream": "rank-0", "limit": 1000})
    steps = [record["step"] for record in records["items"] if record["kind"] == "step"]
    assert steps == [1, 2, 3, 4] and ada.runs.get(ended.run).state == "finished"


def test_a_shell_script_runs_and_its_exit_code_is_the_jobs(
    client_for: ClientFor, start_agent: StartAgent, tmp_path: Path
) -> None:
    ada = client_for("ada")
    start_agent(ada, clew=True)
    (tmp_path / "go.sh").write_text('echo "argument $1"\nexit 3\n')
    finished = command(ada, "submit", "--kind", "script", "go.sh", "--follow", "--", "first", cwd=tmp_path)
    assert finished.returncode != 0 and "argument first" in finished.stdout
    (job,) = ada.jobs.list()
    assert (job.state, job.exit_code) == ("failed", 3)


def test_a_rank_that_fails_ends_the_others_and_the_job(
    client_for: ClientFor, start_agent: StartAgent, tmp_path: Path
) -> None:
    ada = client_for("ada")
    start_agent(ada, clew=True)
    text = "import os, time\nif os.environ['RANK'] == '1':\n    raise ValueError('no beam')\ntime.sleep(600)\n"
    (tmp_path / "fails.py").write_text(text)
    job = ada.jobs.submit(submission(str(tmp_path / "fails.py"), kind="script", resources={"workers": 2}))
    ended = ada.jobs.wait(job.id, seconds=100)
    assert (ended.state, ended.exit_code) == ("failed", 1) and "no beam" in ended.reason


@pytest.mark.long
def test_a_recipe_travels_with_the_modules_that_it_imports(
    client_for: ClientFor, start_agent: StartAgent, flat: Dataset, tmp_path: Path
) -> None:
    ada = client_for("ada")
    start_agent(ada, clew=True)
    text = Path(RECIPE).read_text()
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "extra.py").write_text("VALUE = 1\n")
    (tmp_path / "mine.py").write_text(text + "\n\nfrom package.extra import VALUE\n\nassert VALUE == 1\n")
    words = ("--dataset", flat.path, "--epochs", 1, "--set", "train.threads=1", "--wait")
    finished = command(ada, "submit", "mine.py", *words, cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr + finished.stdout
    (job,) = ada.jobs.list()
    assert job.state == "done" and set(ada.jobs.get(job.id).files) == {
        "mine.py",
        "package/__init__.py",
        "package/extra.py",
    }


@pytest.mark.slow
def test_what_cannot_travel_is_refused(tmp_path: Path) -> None:
    (tmp_path / "large.py").write_text("x = 1\n" * 100_000)
    with pytest.raises(ConfigError, match=r"large\.py: 600 kB; at most 500 kB .* put data where the agent can read it"):
        submission(str(tmp_path / "large.py"), kind="script")
    (tmp_path / "binary.sh").write_bytes(b"\x7fELF\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8 text"):
        submission(str(tmp_path / "binary.sh"), kind="script")
    with pytest.raises(ConfigError, match="no such file"):
        submission(str(tmp_path / "none.py"), kind="script")
    for number in range(70):
        (tmp_path / f"m{number}.py").write_text("")
    (tmp_path / "wide.py").write_text("".join(f"import m{number}\n" for number in range(70)))
    with pytest.raises(ConfigError, match="imports 71 files of its folder; at most 64"):
        submission(str(tmp_path / "wide.py"), kind="script")


@pytest.mark.parametrize("name", ["../order.json", "/etc/passwd", "a/../../b.py", ".bashrc", "a/.b.py"])
def test_a_file_cannot_leave_the_jobs_folder_of_code(name: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("")
    job = submission(str(tmp_path / "mine.py"), kind="script").model_dump()
    with pytest.raises(ValueError, match="pattern"):
        type(submission(str(tmp_path / "mine.py"), kind="script")).model_validate({**job, "files": {name: ""}})
