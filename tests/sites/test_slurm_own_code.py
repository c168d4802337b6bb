"""A user's own code as jobs of the server on real Slurm: scripts with ranks, limits and restarts, and new recipes."""

from __future__ import annotations

from pathlib import Path

import pytest

from clew import Client
from clew.cli.start.recipe_template import starting_points
from clew.errors import JobError
from tests.jobs.agent.test_init_submit import BY_NAME, new_recipe, small_dataset
from tests.jobs.agent.test_own_code import TRAIN
from tests.sites import long
from tests.sites.cluster import Cluster
from tests.sites.conftest_service import Login

SUM = """
import torch, clew
session = clew.distributed.setup()
total = torch.ones(1)
torch.distributed.all_reduce(total)
if session.rank == 0:
    clew.log(val_total=float(total))
"""
TORCH = """
import os, torch
torch.distributed.init_process_group("gloo")
total = torch.tensor([1.0 + torch.distributed.get_rank()])
torch.distributed.all_reduce(total)
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "SLURMD_NODENAME")
print(*(os.environ[name] for name in names), "total", float(total), flush=True)
torch.distributed.destroy_process_group()
"""
_OTHERS = [each for each in starting_points() if each != "small"]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "mine" / "helpers").mkdir(parents=True)
    (tmp_path / "mine" / "train.py").write_text(TRAIN)
    (tmp_path / "mine" / "helpers" / "numbers.py").write_text("def falling(step):\n    return 1.0 / (step + 1)\n")
    return tmp_path / "mine" / "train.py"


def test_a_script_runs_in_the_queue_stops_early_and_continues(
    site: Cluster, ada: Client, login: Login, script: Path, tmp_path: Path
) -> None:
    login(clew=True)
    job = ada.submit(
        script,
        kind="script",
        arguments=["--lr", "0.1", "--stop-once"],
        resources={"wall_time": "5m", "site": "here"},
        requeue=1,
        store=str(tmp_path / "models"),
    )
    ended = job.wait(seconds=200)
    assert ended.attempt == 2 and "ranks 1 lr 0.1" in job.log()
    assert job.run().metrics["accuracy"] == 0.75 and job.stored is not None
    assert job.download("artefacts/weights.txt", tmp_path / "weights.txt").read_text() == "1 2 3"
    assert (Path(job.stored) / "artefacts" / "weights.txt").read_text() == "1 2 3"


def test_a_script_on_two_nodes_is_one_run(site: Cluster, ada: Client, login: Login, tmp_path: Path) -> None:
    login(clew=True)
    (tmp_path / "sums.py").write_text(SUM)
    resources = {"workers": 2, "nodes": 2, "wall_time": "5m", "site": "here"}
    job = ada.submit(tmp_path / "sums.py", kind="script", resources=resources)
    job.wait(seconds=200)
    assert job.run().metrics["total"] == 2.0


def test_a_script_on_two_nodes_has_the_variables_of_torchrun(
    site: Cluster, ada: Client, login: Login, tmp_path: Path
) -> None:
    login(clew=True)
    (tmp_path / "plain_torch.py").write_text(TORCH)
    resources = {"workers": 2, "nodes": 2, "wall_time": "5m", "site": "here"}
    job = ada.submit(tmp_path / "plain_torch.py", kind="script", resources=resources)
    job.wait(seconds=200)
    ranks = sorted(line.split() for line in job.log().splitlines() if "total" in line)
    assert [rank[:4] for rank in ranks] == [["0", "2", "0", "1"], ["1", "2", "0", "1"]]
    assert len({rank[4] for rank in ranks}) == 2 and all(rank[-1] == "3.0" for rank in ranks)


def test_a_script_that_fails_in_the_queue_names_its_line(
    site: Cluster, ada: Client, login: Login, tmp_path: Path
) -> None:
    login(clew=True)
    (tmp_path / "fails.py").write_text("import os\nassert os.environ['SLURM_JOB_ID']\nraise ValueError('no beam')\n")
    job = ada.submit(tmp_path / "fails.py", kind="script", resources={"wall_time": "2m", "site": "here"})
    with pytest.raises(JobError, match=r"fails\.py:3: ValueError: no beam"):
        job.wait(seconds=100)


def test_the_wall_time_of_a_script_is_enforced_in_the_queue(
    site: Cluster, ada: Client, login: Login, tmp_path: Path
) -> None:
    login(clew=True)
    (tmp_path / "sleeps.sh").write_text("echo started\nexec sleep 300\n")
    job = ada.submit(tmp_path / "sleeps.sh", kind="script", resources={"wall_time": 3, "site": "here"})
    with pytest.raises(JobError, match="its wall time of 3 s is over"):
        job.wait(seconds=150)
    assert "started" in job.log()


@pytest.mark.parametrize("like", ["small", *(pytest.param(each, marks=long) for each in _OTHERS)])
def test_a_new_recipe_is_trained_in_the_queue(
    like: str, site: Cluster, ada: Client, login: Login, tmp_path: Path
) -> None:
    file, dataset, settings = new_recipe(like, tmp_path / "mine")
    login(clew=True)
    job = ada.submit(file, settings, dataset=str(dataset), resources={"wall_time": "5m", "site": "here"})
    job.wait(seconds=250)
    assert job.run().state == "finished"


@long
@pytest.mark.parametrize("name", BY_NAME)
def test_a_shipped_recipe_is_trained_in_the_queue_by_its_name(
    name: str, site: Cluster, ada: Client, login: Login, tmp_path: Path
) -> None:
    dataset, settings = small_dataset(name, name, tmp_path)
    login(clew=True)
    job = ada.submit(name, settings, dataset=str(dataset), resources={"wall_time": "5m", "site": "here"})
    job.wait(seconds=250)
    assert job.run().state == "finished"
