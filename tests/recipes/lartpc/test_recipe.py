"""The recipe from a file to figures, at a small image."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clew
from clew import Dataset, Ragged, Run, Table, settings
from clew.errors import ConfigError, DataError
from clew.metrics import Confusion
from clew.recipes.lartpc import LArTPC
from clew.recipes.lartpc.columns import CLASSES
from tests.cli import clew as command
from tests.cli import done

from .events import SIDE, particles
from .test_event_files import write_tar

SMALL = [f"image.rows={SIDE}", f"image.columns={SIDE}", "train.threads=1"]
Trained = tuple[Dataset, Run]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("lartpc")
    particles(160).save(folder / "synthetic.h5")
    more = ["train.epochs=3", "train.batch_size=8"]
    loaded = settings.load_settings("lartpc", [*SMALL, *more])
    files = [str(folder / "synthetic.h5")]
    data = clew.prepare(loaded.recipe, loaded.prepare, input=files, output=str(folder / "data"), workers=1)
    return data, clew.train(loaded.recipe, data, config=loaded.train, output=folder / "run")


def test_it_learns(trained: Trained) -> None:
    first, *_, last = (record["metrics"] for record in trained[1].records(kind="validation"))
    assert last["loss"] < first["loss"]
    assert {"accuracy", *(f"{name}/efficiency" for name in CLASSES)} <= last.keys()


def test_an_evaluation_draws_the_confusion_table(trained: Trained) -> None:
    result = clew.evaluate(trained[1])
    assert result.metrics["confusion"].value == pytest.approx(result.metrics["accuracy"].value)
    confusion, scores = (result.metrics[name] for name in ("confusion", "summed_scores"))
    assert isinstance(confusion, Confusion) and isinstance(scores, Confusion)
    np.testing.assert_allclose(scores.counts.sum(axis=1), confusion.counts.sum(axis=1))
    drawn = [json.loads(each.read_text()) for each in sorted((trained[1].plots / "test").glob("*confusion*.json"))]
    assert list(drawn[0]["data"][0]["x"]) == list(CLASSES)
    assert list((trained[1].plots / "test").glob("*accuracy_energy*.json"))


def test_scores_of_unlabelled_events_add_up(trained: Trained, tmp_path: Path) -> None:
    events = particles(3, seed=5)
    bare = Table({name: events[name] for name in ("event", "index", "charge")})
    bare.save(tmp_path / "bare.h5")
    predictions = clew.predict(trained[1], input=[str(tmp_path / "bare.h5")])
    assert isinstance(predictions, Table) and len(predictions) == 3
    np.testing.assert_allclose(sum(predictions.fixed(f"score_{name}") for name in CLASSES), 1, rtol=1e-6)


def test_real_frames_without_labels_are_predicted_and_prepare_says_so(trained: Trained, tmp_path: Path) -> None:
    frame = np.zeros((SIDE + 10, SIDE - 25), dtype=np.float32)
    frame[100:300, 200] = 5000.0
    frames = {f"frame_gauss0_{event}.npy": frame * event for event in (7, 8)}
    path = write_tar(tmp_path / "frames.tar.bz2", frames)
    small = [word for setting in SMALL for word in ("--set", setting)]
    outcome = command("prepare", "lartpc", "--input", path, "--output", tmp_path / "data", "--workers", "1", *small)
    assert outcome.code == 2 and outcome.err.count("\n") == 1
    assert "frames.tar.bz2" in outcome.err and "no column 'label', which training needs" in outcome.err
    assert "clew predict RUN --input FILE" in outcome.err
    done("predict", trained[1].path, "--input", path, "--output", tmp_path / "scores.h5")
    assert Table.load(tmp_path / "scores.h5").fixed("event").tolist() == [7, 8]


def test_dense_and_cells_are_one_network(trained: Trained) -> None:
    import torch

    from clew.data.dataset.batch import to_batch

    batch, logits = to_batch(particles(2), LArTPC.columns), []
    for kind in ("cells", "dense"):
        recipe = settings.load_settings("lartpc", [*SMALL, f"model.kind={kind}"]).recipe
        torch.manual_seed(2)
        logits.append(recipe.forward(recipe.model(), batch))
    torch.testing.assert_close(*logits, rtol=1e-4, atol=1e-5)


def _changed(change: Any, *, column: str) -> Table:
    events = particles(3)
    values = events.ragged(column).values.copy()
    change(values, events.ragged(column).offsets[1])
    return events.join({column: Ragged(values, events.ragged(column).offsets)})


def _put(value: float, shift: int = 0) -> Any:
    def change(values: Any, at: int) -> None:
        values[at + shift] = value

    return change


@pytest.mark.parametrize(
    ("events", "message"),
    [
        (_changed(_put(np.nan), column="charge"), "event 1: charge nan"),
        (_changed(_put(-0.5), column="charge"), "event 1: charge -0.5"),
        (_changed(_put(np.inf, -1), column="charge"), "event 0: charge inf"),
        (_changed(_put(SIDE * SIDE), column="index"), "event 1: pixel 390625 is outside an image of 625 x 625"),
        (_changed(_put(-1), column="index"), "event 1: pixel -1 is outside"),
        (_changed(_put(0, 3), column="index"), "event 1: pixel 0 stands twice or out of order"),
    ],
)
def test_bad_pixels_are_named(events: Table, message: str) -> None:
    with pytest.raises(DataError, match=message):
        settings.load_settings("lartpc", SMALL).recipe.prepare(events)


def test_an_empty_event_is_named() -> None:
    empty = Table({"event": np.array([7]), "index": Ragged([], [0, 0]), "charge": Ragged([], [0, 0])})
    with pytest.raises(DataError, match="event 7: no pixel"):
        settings.load_settings("lartpc", SMALL).recipe.prepare(empty)


def test_an_event_with_more_pixels_than_fit_is_named() -> None:
    with pytest.raises(DataError, match=r"event \d: \d,\d+ pixels have charge, more than the 50 that fit"):
        settings.load_settings("lartpc", [*SMALL, "image.max_pixels=50"]).recipe.prepare(particles(2))


def test_shrunk_images_are_seen_by_a_smaller_network() -> None:
    recipe = settings.load_settings("lartpc", ["image.rows=1301", "image.columns=1300", "image.shrink=2"]).recipe
    samples = recipe.prepare(particles(2, side=1300))
    assert samples.ragged("index").values.max() < 651 * 650
    network: Any = recipe.model()
    assert (network.height, network.width) == (651, 650)


def test_an_image_too_small_for_four_poolings_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"image.rows.*625"):
        settings.load_settings("lartpc", ["image.rows=500"])


def test_images_shrunk_to_less_than_the_network_takes_lie_in_a_corner() -> None:
    recipe = settings.load_settings("lartpc", ["image.rows=1300", "image.columns=1300", "image.shrink=4"]).recipe
    assert recipe.config.image.network_size == (625, 625)
    samples = recipe.prepare(particles(2, side=1300))
    row, column = np.divmod(samples.ragged("index").values, 625)
    assert 50 < max(row.max(), column.max()) < 325
    network: Any = recipe.model()
    assert (network.height, network.width) == (625, 625)
