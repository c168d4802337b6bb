"""A folder of the TrackML challenge, as it is downloaded: four compressed files per event."""

from __future__ import annotations

import contextlib
import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from clew import Dataset
from clew.recipes.tracking.geometry import PRESETS
from clew.recipes.tracking.trackml import BARREL
from tests.cli import clew, done

EVENTS, TRACKS = 12, 6
FILES = {
    "hits": ("hit_id,x,y,z,volume_id,layer_id,module_id", "%d,%.6g,%.6g,%.6g,%d,%d,%d"),
    "cells": ("hit_id,ch0,ch1,value", "%d,%d,%d,%.6g"),
    "particles": ("particle_id,vx,vy,vz,px,py,pz,q,nhits", "%d,%.6g,%.6g,%.6g,%.6g,%.6g,%.6g,%d,%d"),
    "truth": ("hit_id,particle_id,tx,ty,tz,tpx,tpy,tpz,weight", "%d,%d,%.6g,%.6g,%.6g,%.6g,%.6g,%.6g,%.6g"),
}
"""Header and format of each file."""
SMALL = ("--set", "detector.name=trackml", "--set", "train.epochs=1", "--workers", "1")


def _write(folder: Path, event: int, kind: str, columns: list[NDArray[Any]]) -> None:
    header, line_format = FILES[kind]
    with gzip.open(folder / f"event{event:09d}-{kind}.csv.gz", "wt") as file:
        np.savetxt(file, np.stack(columns, axis=1), fmt=line_format, header=header, comments="")


def write_trackml_folder(folder: Path, events: int = EVENTS) -> None:
    """Straight tracks from the beam through the ten layers of the barrel."""
    radii = np.array(PRESETS["trackml"]["radii"])
    folder.mkdir(parents=True)
    for event in range(1000, 1000 + events):
        random = np.random.default_rng(event)
        phi, slope = random.uniform(-np.pi, np.pi, TRACKS), random.uniform(-0.4, 0.4, TRACKS)
        x, y, z = (np.outer(factor, radii).ravel() for factor in (np.cos(phi), np.sin(phi), slope))
        hit_id, particle = np.arange(1, x.size + 1), np.repeat(np.arange(1, TRACKS + 1), len(radii))
        volume, layer = np.tile(np.array(BARREL), (TRACKS, 1)).T
        momentum = [np.repeat(factor, len(radii)) for factor in (np.cos(phi), np.sin(phi), slope)]
        one, zero = np.ones(TRACKS), np.zeros(TRACKS)
        _write(folder, event, "hits", [hit_id, x, y, z, volume, layer, hit_id])
        _write(folder, event, "cells", [hit_id, hit_id, hit_id, 1.0 / hit_id])
        _write(
            folder,
            event,
            "particles",
            [*[one * 0 + np.arange(1, TRACKS + 1)], zero, zero, zero, one, one, slope, one, 10 * one],
        )
        _write(folder, event, "truth", [hit_id, particle, x, y, z, *momentum, 1.0 / hit_id])
    (folder / "detectors.csv").write_text("volume_id,layer_id,module_id,cx,cy,cz\n7,2,1,-65.8,-5.1,-1502.5\n")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of events, a dataset of it and a run."""
    path = tmp_path_factory.mktemp("trackml")
    write_trackml_folder(path / "train_sample")
    with contextlib.chdir(path):
        done("prepare", "hitgraph", "--input", "train_sample", "--output", "dataset", *SMALL[:2], *SMALL[4:])
        done("train", "hitgraph", "--dataset", "dataset", "--output", "runs/a", *SMALL)
    return path


@pytest.mark.slow
def test_a_downloaded_folder_is_prepared(folder: Path) -> None:
    dataset = Dataset(folder / "dataset")
    assert sum(dataset.splits.values()) == EVENTS
    assert {Path(source.name).name.partition("-")[2] for source in dataset.manifest.inputs} == {"hits.csv.gz"}
    assert dataset.read("train").ragged("label").values.any(), "the truth was read"


@pytest.mark.slow
@pytest.mark.parametrize("command", ["evaluate", "predict"])
def test_a_run_takes_the_folder_as_its_input(folder: Path, command: str, tmp_path: Path) -> None:
    output = ("--output", tmp_path / "tracks.h5") if command == "predict" else ()
    assert f"{EVENTS} events" in done(command, folder / "runs/a", "--input", folder / "train_sample", *output)


def test_a_change_of_the_truth_makes_another_dataset(folder: Path, tmp_path: Path) -> None:
    write_trackml_folder(tmp_path / "copy", 2)
    words = ("prepare", "hitgraph", "--input", tmp_path / "copy", "--output", tmp_path / "dataset", *SMALL[:2])
    done(*words, "--workers", "1")
    truth = tmp_path / "copy" / "event000001000-truth.csv.gz"
    truth.write_bytes(gzip.compress(gzip.decompress(truth.read_bytes()).replace(b",1,", b",2,")))
    outcome = clew(*words, "--workers", "1")
    assert outcome.code == 2 and "holds another dataset" in outcome.err
