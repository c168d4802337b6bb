"""Every shipped jet network can be exported, and gives the same outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from pyarrow import parquet

import clew
from clew import Dataset, Run, Table
from tests.cli import done

from . import jets
from .conftest import Trained
from .test_recipe import KINDS

ENDINGS = {"onnx": ".onnx", "torch": ".pt2"}


def dataset_of(run: Run) -> Dataset:
    return Dataset(run.config().data["train"]["dataset"])


def same(left: Any, right: Any) -> None:
    assert list(left) == list(right) and len(left) == len(right) > 1
    for name in left:
        np.testing.assert_allclose(left.fixed(name), right.fixed(name), atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("to", ENDINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_an_exported_tagger_gives_the_rows_of_its_run(
    kind: str, to: str, trained: Trained, labelled: Path, tmp_path: Path
) -> None:
    run = trained(kind)
    exported = clew.export(run, to=to, output=tmp_path / f"model{ENDINGS[to]}")
    assert exported.facts.difference < 1e-5
    if (kind, to) == ("transformer", "onnx"):  # the guard of torch.onnx takes a pass over all pairs
        assert "IsNaN" not in {node.op_type for node in onnx.load(exported.path).graph.node}
    axes = {each.name: each.axes for each in exported.facts.inputs}
    if KINDS[kind][0] == "jets":
        free = ("events", "constituents_longest")
        assert axes == {"constituents": free, "constituents_mask": free}
        assert exported.facts.left_out == ("Jets.prepare, which makes constituents",)
    else:
        assert set(axes.values()) == {("events",)}
    same(clew.predict(run), clew.predict(exported.path, data=dataset_of(run)))
    small_input = tmp_path / "few.h5"
    jets(7, seed=8).save(small_input)
    same(clew.predict(run, input=[str(small_input)]), clew.predict(exported.path, input=[str(small_input)]))


def test_features_are_scaled_by_the_exported_tagger(trained: Trained, labelled: Path, tmp_path: Path) -> None:
    run = trained("mlp")
    exported = clew.export(run, to="onnx", output=tmp_path / "model.onnx")
    assert [entry.partition(" of ")[0] for entry in exported.facts.included] == ["standard"]
    assert all(entry.startswith("compute feature_") for entry in exported.facts.left_out)
    events: Table = Table.load(labelled)
    recipe = run.recipe
    for step in recipe.transforms()[:-1]:  # all but the scaling
        events = step(events) if getattr(step, "kind", "") != "reweight" else events
    raw = recipe.prepare(events).fixed("features")
    (exported_scores,) = onnxruntime.InferenceSession(exported.path).run(None, {"features": raw})
    run_scores: Any = clew.predict(run, input=[str(labelled)], raw=True)
    np.testing.assert_allclose(exported_scores, run_scores.fixed("output"), atol=1e-4)


def test_images_of_a_file_are_scaled_by_the_exported_tagger() -> None:
    from clew import settings

    assert settings.load_settings("jetimages", ["data.images=[QCD, TT]"]).recipe.passthrough_columns() == {
        "image": ("image",)
    }
    assert settings.load_settings("jetimages").recipe.passthrough_columns() == {}


@pytest.mark.long
def test_the_commands(trained: Trained, tmp_path: Path) -> None:
    run, file = trained("gru"), tmp_path / "gru.onnx"
    output = done("export", run.path, "--to", "onnx", "-o", file)
    assert "does not include: Jets.prepare, which makes constituents" in output and "label" not in output
    done("predict", file, dataset_of(run).path, "-o", tmp_path / "out.parquet", "--with", "jet_pt")
    done("predict", run.path, "-o", tmp_path / "own.parquet", "--with", "jet_pt")
    exported_rows, run_rows = (parquet.read_table(tmp_path / name) for name in ("out.parquet", "own.parquet"))
    assert exported_rows.column_names == run_rows.column_names and "score_top" in exported_rows.column_names
    for name in exported_rows.column_names:
        np.testing.assert_allclose(exported_rows[name].to_numpy(), run_rows[name].to_numpy(), atol=1e-5)
