"""The particle-flow recipe in the workload: reproducible bits, and the effect of the number of threads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import clew
from clew import Dataset, Run
from clew.bench.workload import inference_speed
from clew.bench.workload.config import FIXED, WorkloadConfig
from clew.bench.workload.event_data import EventData, EventRequest, make_event_data
from clew.recipes.particleflow import generator
from clew.recipes.particleflow.generator import ParticleFlowGeneratorConfig
from clew.settings import load_settings
from tests.cli import clew as shell
from tests.recipes.particleflow.test_event_files import write_delphes
from tests.training import losses

pytestmark = pytest.mark.timeout(120)
SMALL = (
    "model.width=32",
    "model.distance=16",
    "model.bin_size=64",
    "model.identity_width=16",
    "model.momentum_width=16",
    "generator.pileup=10",
)
TOLERANCE = 0.01
"""Largest relative difference of losses between one thread and two."""


@pytest.fixture(scope="module")
def event_data(tmp_path_factory: pytest.TempPathFactory) -> EventData:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLEW_CACHE", str(tmp_path_factory.mktemp("cache")))
        recipe = load_settings("particleflow", (*FIXED["particleflow"], *SMALL)).recipe
        first = make_event_data(recipe, EventRequest(8, 0), tmp_path_factory.mktemp("out"))
        again = make_event_data(recipe, EventRequest(8, 0), tmp_path_factory.mktemp("out"))
        assert first.checksum == again.checksum and again.dataset.path == first.dataset.path
        return first


def train(event_data: EventData, output: Path, threads: int) -> Run:
    chosen = load_settings("particleflow", (*FIXED["particleflow"], *SMALL))
    settings: dict[str, Any] = {"epochs": 1, "batch_size": 2, "log_every": 1, "monitor_seconds": None}
    settings |= {"threads": threads, "deterministic": True}
    return clew.train(chosen.recipe, event_data.dataset, config=chosen.train, output=output, **settings)


@pytest.mark.long
def test_the_same_bits_twice_and_nearly_so_with_other_threads(event_data: EventData, tmp_path: Path) -> None:
    one, again, two = (train(event_data, tmp_path / name, n) for name, n in (("one", 1), ("again", 1), ("two", 2)))
    first, second, third = ([each["loss"] for each in losses(run)] for run in (one, again, two))
    assert len(first) == 4 and first == second
    assert third == pytest.approx(first, rel=TOLERANCE)
    agreement = inference_speed.agreement(two, WorkloadConfig(threads=2, gpus=0))
    assert agreement is not None and agreement["between"] == ["1 thread", "2 threads"] and agreement["items"] > 100
    bins, classes, correct = (agreement["outputs"][name] for name in ("bin", "class", "correct"))
    assert 0 <= bins["differ"] < 0.05 and len(bins["by_layer"]) == 3
    assert correct["mean_difference"] <= classes["differ"] < 0.05


def test_padding_is_what_bins_have_left(event_data: EventData) -> None:
    recipe = load_settings("particleflow", (*FIXED["particleflow"], *SMALL)).recipe
    facts = recipe.benchmark_facts(event_data.dataset)
    lengths = event_data.dataset.lengths("train", "elements")
    places = sum(64 * -(-int(n) // 64) for n in lengths)
    assert facts["padding_share"] == pytest.approx(1 - lengths.sum() / places)
    assert facts["padding_share"] <= facts["padding_share_of_rectangles"] < 1


def test_delphes_files_in_the_place_of_synthetic_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEW_CACHE", str(tmp_path / "cache"))
    tables = [
        generator.make_events(count, 1, place, ParticleFlowGeneratorConfig(kind="parametric", pileup=4))
        for place, count in ((0, 6), (1, 8))
    ]
    for name, table in zip(("a.pkl", "b.pkl.bz2"), tables, strict=True):
        write_delphes(tmp_path / name, table)
    settings = [word for one in SMALL for word in ("--set", one)]
    words: list[str | Path] = [
        "--data",
        tmp_path / "*.pkl*",
        "--epochs",
        "1",
        "--threads",
        "1",
        "--gpus",
        "0",
        *settings,
    ]
    outcome = shell("bench", "particleflow", *words, "--events", "7", "--output", tmp_path / "out")
    assert outcome.code == 0, outcome.err
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["data"]["synthetic"] is False and report["data"]["events"] == {"train": 7, "val": 4}
    assert "not comparable with the published one" in report["figures"]["comparable"]
    prepared = Dataset(tmp_path / "out" / "dataset")
    first, second = (table.ragged("elements").lengths.tolist() for table in tables)
    assert sorted(prepared.lengths("train", "elements").tolist()) == sorted([*first, second[0]])
    outcome = shell("bench", "particleflow", *words, "--events", "12", "--output", tmp_path / "more")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert "--data holds 14 events, but 12 training and 4 validation events are needed" in outcome.err
