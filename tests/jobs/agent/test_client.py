"""The whole way from Python: `clew.Client.submit` with an own recipe or script, a real server and a real agent."""

from __future__ import annotations

import importlib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from clew import Client, Dataset, Recipe, Run
from clew.errors import JobError, RecipeError
from clew.storage.models import find_models
from tests.jobs.agent.conftest import StartAgent
from tests.jobs.agent.test_jobs import command
from tests.tuning import RECIPE

ClientFor = Callable[..., Client]


@pytest.fixture
def samples(flat: Dataset, tmp_path: Path) -> str:
    """The URL of the raw events in an archive; `tests/sites` has those of S3 and Rucio."""
    with zipfile.ZipFile(tmp_path / "events.zip", "w") as archive:
        for file in flat.path.parent.glob("*.npz"):
            archive.write(file, file.name)
    return f"zip://*.npz::{tmp_path / 'events.zip'}"


@pytest.fixture
def recipe_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[Recipe]:
    """A recipe's class in a module of a user's folder, which imports another."""
    (tmp_path / "my_numbers.py").write_text("ONE = 1\n")
    (tmp_path / "my_slope.py").write_text(f"{Path(RECIPE).read_text()}\nfrom my_numbers import ONE\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    chosen: type[Recipe] = importlib.import_module("my_slope").Slope
    return chosen


@pytest.mark.long
def test_an_own_recipe_and_samples_by_name_become_a_stored_model(
    client_for: ClientFor, start_agent: StartAgent, recipe_class: type[Recipe], samples: str, tmp_path: Path
) -> None:
    ada = client_for("ada")
    start_agent(ada, clew=True)
    made = ada.submit(recipe_class, {"prepare.input": [samples], "prepare.workers": 1}, kind="prepare", name="points")
    made.wait(seconds=200)
    (dataset,) = ada.datasets.list()

    job = ada.submit(
        recipe_class,
        {"train.epochs": 1, "train.threads": 1},
        dataset=dataset.key,
        resources={"cpus": 1, "memory": "4G", "wall_time": "10m"},
        store=str(tmp_path / "models"),
    )
    output = "".join(job.follow())
    assert job.state == "done" and job.error is None, output
    assert "epoch" in output and "epoch" in job.log()
    detail = job.wait()
    assert detail.resources.memory == 4_000_000_000 and detail.resources.wall_time == 600
    assert set(detail.files) == {"my_slope.py", "my_numbers.py"}
    assert job.run().state == "finished" and "loss" in job.run().metrics
    assert "<html" in job.download("report.html", tmp_path / "report.html").read_text()[:500]
    (model,) = find_models(str(tmp_path / "models"))
    assert model.location == job.stored
    assert Run.open(model.location).config().data["recipe"].endswith(f"my_slope.py:{recipe_class.__name__}")
    evaluated = command(ada, "submit", job.id, "--kind", "evaluate", "--wait")  # a job runs its owner's code unasked
    assert evaluated.returncode == 0, evaluated.stdout + evaluated.stderr


def test_the_error_of_a_job_is_its_own(client_for: ClientFor, start_agent: StartAgent, tmp_path: Path) -> None:
    ada = client_for("ada")
    start_agent(ada, clew=True)
    (tmp_path / "train.py").write_text(
        "import sys\n\nif sys.argv[1:] == ['--lr', '0.1']:\n    raise ValueError('no beam')\n"
    )
    job = ada.submit(tmp_path / "train.py", kind="script", arguments=["--lr", "0.1"])
    with pytest.raises(JobError, match=r"train\.py:4: ValueError: no beam"):
        job.wait(seconds=100)
    assert job.error == "train.py:4: ValueError: no beam"
    assert job.id in [each.id for each in ada.jobs.list(state=["failed"])]


def test_the_error_of_a_recipe_names_its_line(
    client_for: ClientFor, start_agent: StartAgent, flat: Dataset, tmp_path: Path
) -> None:
    ada = client_for("ada")
    start_agent(ada, clew=True)
    lines = Path(RECIPE).read_text().splitlines()
    number = next(place for place, line in enumerate(lines) if "def model(self" in line) + 1
    lines.insert(number, "        raise ValueError('no layers')")
    (tmp_path / "broken.py").write_text("\n".join(lines) + "\n")
    job = ada.submit(tmp_path / "broken.py", {"train.epochs": 1}, dataset=str(flat.path))
    with pytest.raises(JobError):
        job.wait(seconds=100)
    assert job.error is not None and f"broken.py:{number + 1}" in job.error and "no layers" in job.error
    assert "--debug" not in job.error


def test_a_class_that_cannot_travel_is_refused(client_for: ClientFor, tmp_path: Path) -> None:
    ada = client_for("ada")
    typed_in = type("TypedIn", (Recipe,), {"__module__": "__main__"})
    with pytest.raises(RecipeError, match="typed in, and agents cannot load it; save it in a file"):
        ada.submit(typed_in)
    text = "import clew\nclew.Client('http://x', 'clew_x').submit(Mine)\n"
    (tmp_path / "endless.py").write_text(f"{Path(RECIPE).read_text()}\n{text.replace('Mine', 'Slope')}")
    with pytest.raises(RecipeError, match="submits it while it is loaded"):
        ada.submit(tmp_path / "endless.py", dataset="/data")
