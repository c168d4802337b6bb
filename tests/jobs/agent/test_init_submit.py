"""`clew init`, then `clew submit`: what a new user does first, on a local agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import clew
from clew import Client
from clew.cli.start.recipe_template import starting_points, write_recipe
from clew.recipe import find, shipped
from tests.jobs.agent.conftest import StartAgent
from tests.sites import long

ClientFor = Callable[..., Client]
SETTINGS: Mapping[str, Mapping[str, Any]] = {"lartpc": {"image": {"rows": 625, "columns": 625}}}
"""Settings of recipes that are large by default."""
EVENTS = {"particleflow": 20, "lartpc": 20, "small": 300}
BY_NAME = [each for each in shipped() if each not in (*starting_points(), "columns", "lightning")]
"""Shipped recipes that `clew init` does not offer. `columns` is a recipe only together with a model."""
_OTHERS = [each for each in starting_points() if each not in ("small", "tracking")]


def new_recipe(like: str, folder: Path) -> tuple[Path, Path, list[str]]:
    """Write a recipe and make a small dataset for it. Return its file, the dataset and the settings of a short job."""
    file = write_recipe("my_recipe", like, folder)[0]
    return (file, *small_dataset(str(file), like, folder))


def small_dataset(source: str, like: str, folder: Path) -> tuple[Path, list[str]]:
    """Make a small dataset for a recipe that is, or was started from, `like`; return it and settings of a short job."""
    if like.startswith("jet"):
        pytest.importorskip("pythia8mc", reason="pip install 'clew[hep]'")
        pytest.importorskip("fastjet", reason="pip install 'clew[hep]'")
    kind = find(source)
    recipe = kind(kind.Config(**SETTINGS.get(like, {})))
    list(recipe.generate(EVENTS.get(like, 60), 1, folder / "events"))
    dataset = clew.prepare(recipe, input=[str(folder / "events")], output=str(folder / "dataset"), workers=1)
    changed = [
        f"{section}.{name}={value}"
        for section, values in SETTINGS.get(like, {}).items()
        for name, value in values.items()
    ]
    return dataset.path, [*changed, "train.epochs=1", "train.threads=1"]


@pytest.mark.parametrize("like", ["small", "tracking", *(pytest.param(each, marks=long) for each in _OTHERS)])
def test_a_new_recipe_is_trained_by_an_agent(
    like: str, client_for: ClientFor, start_agent: StartAgent, tmp_path: Path
) -> None:
    file, dataset, settings = new_recipe(like, tmp_path / "mine")
    ada = client_for("ada")
    start_agent(ada, clew=True)
    job = ada.submit(file, settings, dataset=str(dataset))
    ended = job.wait(seconds=200)
    assert set(ended.files) == {path.name for path in file.parent.glob("my_recipe*.py")}
    assert job.run().state == "finished" and "loss" in job.run().metrics


@long
@pytest.mark.parametrize("name", BY_NAME)
def test_a_shipped_recipe_is_trained_by_its_name(
    name: str, client_for: ClientFor, start_agent: StartAgent, tmp_path: Path
) -> None:
    dataset, settings = small_dataset(name, name, tmp_path)
    ada = client_for("ada")
    start_agent(ada, clew=True)
    job = ada.submit(name, settings, dataset=str(dataset))
    job.wait(seconds=200)
    assert job.run().state == "finished" and job.run().metrics
