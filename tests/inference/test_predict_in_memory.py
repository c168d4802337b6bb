"""`clew.predict(run, X)`: events in memory of every kind, and a result of the same kind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import clew
from clew import Ragged, Run, Table
from clew.errors import ConfigError, DataError

RNG = np.random.default_rng(1)
X = RNG.normal(size=(300, 2)).astype(np.float32)
FRAME = pd.DataFrame({"pt": X[:, 0], "eta": X[:, 1], "label": (X.sum(1) > 0).astype(int), "era": ["A"] * 300})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two features of a data frame, scaled, and two classes."""
    output = tmp_path_factory.mktemp("run") / "runs/frame"
    model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
    columns: dict[str, Any] = {"features": "pt,eta", "labels": "label", "scale": "standard", "select": "abs(pt) < 50"}
    return clew.train(model, FRAME, epochs=2, lr=0.05, output=output, **columns)


KINDS: dict[str, Callable[[], Any]] = {
    "array": lambda: X,
    "list": lambda: X.tolist(),
    "tensor": lambda: torch.from_numpy(X),
    "dictionary": lambda: {"pt": X[:, 0], "eta": X[:, 1]},
    "frame": lambda: FRAME.drop(columns="label"),
    "labelled frame": lambda: FRAME,
    "awkward": lambda: ak.Array({"pt": X[:, 0], "eta": X[:, 1]}),
    "table": lambda: Table({"pt": X[:, 0], "eta": X[:, 1]}),
}


def values(result: Any) -> Any:
    """The output of a prediction of any kind as an array."""
    if isinstance(result, (pd.DataFrame, torch.Tensor)):
        return result[["output_0", "output_1"]].to_numpy() if isinstance(result, pd.DataFrame) else result.numpy()
    return np.asarray(result) if isinstance(result, np.ndarray) else np.asarray(result["output"])


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_events_gives_the_same_kind_and_the_same_numbers(kind: str, run: Run) -> None:
    events = KINDS[kind]()
    result = clew.predict(run, events)
    assert isinstance(result, np.ndarray if kind == "list" else type(events))
    np.testing.assert_array_equal(values(result), values(clew.predict(run, X)))


def test_predictions_of_events_in_memory_are_those_of_a_file(run: Run, tmp_path: Path) -> None:
    Table({"pt": X[:, 0], "eta": X[:, 1]}).save(tmp_path / "events.h5")
    from_file = clew.predict(run, tmp_path / "events.h5")
    np.testing.assert_array_equal(from_file["output"], clew.predict(run, X))
    np.testing.assert_array_equal(from_file["output"], clew.predict(run, input=[str(tmp_path / "events.h5")])["output"])


def test_a_data_frame_keeps_its_index(run: Run) -> None:
    result = clew.predict(run, FRAME.iloc[[7, 3]])
    assert list(result.index) == [7, 3] and list(result.columns) == ["output_0", "output_1"]


@pytest.mark.parametrize(
    ("events", "message"),
    [
        (X[:, :1], "300x1; its columns must be the 2 features pt, eta"),
        ({"pt": X[:, 0]}, "no column 'eta'"),
        (np.where(np.arange(300)[:, None] == 290, np.nan, X), "'pt' holds NaN or infinity, first in event 290"),
        (X * 90, "some events do not pass select 'abs\\(pt\\) < 50'; remove them"),
        (X[:0], "the data is empty"),
        (object(), "cannot read events from a object; pass a clew.Table"),
        ("nothing*.h5", "no input file matches 'nothing"),
    ],
)
def test_wrong_events_are_reported(run: Run, events: Any, message: str) -> None:
    with pytest.raises((ConfigError, DataError), match=message):
        clew.predict(run, events)


def test_columns_for_a_model_of_an_array_say_what_to_pass(tmp_path: Path) -> None:
    run = clew.train(nn.Linear(2, 1), (X, X[:, 0]), epochs=1, output=tmp_path / "run", progress=False)
    with pytest.raises(DataError, match="trained on an array; pass an array too, or a column 'features'"):
        clew.predict(run, FRAME)


def test_events_and_a_dataset_exclude_each_other(run: Run) -> None:
    with pytest.raises(ConfigError, match="only one of them"):
        clew.predict(run, X, split="val")


def test_two_processes_predict_the_same(run: Run) -> None:
    model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
    both = clew.predict(Run.open(run.path), X, recipe=model, workers=2, batch_size=32)
    np.testing.assert_array_equal(both, clew.predict(run, X, batch_size=32))


def test_an_exported_file_predicts_events_in_memory(run: Run, tmp_path: Path) -> None:
    exported = clew.export(run, to="torch", output=tmp_path / "model.pt2", split="val")
    np.testing.assert_allclose(clew.predict(exported.path, X), clew.predict(run, X), rtol=1e-5, atol=1e-5)


class Jets(clew.Recipe):
    """Ragged events, as a recipe of a user reads them."""

    def prepare(self, events: Table) -> Table:
        jets = events.ragged("pt")
        labels = {"top": events["top"]} if "top" in events else {}
        sums = np.array([[len(pt), pt.sum()] for pt in jets], dtype=np.float32)
        return Table({"x": sums, "event": events["event"], **labels})

    def label_columns(self) -> tuple[str, ...]:
        return ("top",)

    def model(self) -> nn.Module:
        return nn.Linear(2, 2)

    def forward(self, model: nn.Module, batch: clew.Batch) -> Any:
        return model(batch["x"])

    def loss(self, outputs: Any, batch: clew.Batch) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs, batch["top"], reduction="none")


def test_a_recipe_predicts_lists_of_different_lengths(tmp_path: Path) -> None:
    lists = [[30.0, 20.0], [], [50.0]] * 40
    events = {"event": np.arange(120), "top": np.arange(120) % 2}
    Table({**events, "pt": Ragged.from_lists(lists)}).save(tmp_path / "events.h5")
    data = clew.prepare(Jets(), input=[str(tmp_path / "events.h5")], output=str(tmp_path / "data"), workers=1)
    run = clew.train(Jets(), data, epochs=1, output=tmp_path / "run")

    result = clew.predict(run, {"event": events["event"], "pt": lists})
    assert list(result) == ["event", "output"] and result["output"].shape == (120, 2)
    frame = clew.predict(run, pd.DataFrame({"event": events["event"], "pt": lists}))
    np.testing.assert_array_equal(frame["output_1"], result["output"][:, 1])
    with pytest.raises(ConfigError, match="an array has no names of columns"):
        clew.predict(run, X)
