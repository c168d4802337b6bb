"""How well the shipped network separates top jets from QCD on the public jet images, against gradient-boosted trees.

5,027 simulated images (CLEW_TEST_DATA, default ../shared/data), five folds; in each the network is trained by clew on
four (prepare, train, predict, as users do it; the last weights, so that the test fold selects nothing) and the
trees on the same four. The trees (scikit-learn's HistGradientBoosting) get the pixels, the shapes that the network
computes of them, or both; settings are chosen by the best mean AUC over the same folds that are reported, which favours
them. Compared are the two scores of every image: errors are those of a paired bootstrap over images.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from numpy.typing import NDArray

import clew
from clew.recipes.jets.cloud import CloudPixels, shapes
from clew.runs.environment import capture
from clew.settings import load_settings

DATA = Path(os.environ.get("CLEW_TEST_DATA", "../shared/data")) / "jets/machine-learning-das/jet_images.h5"
CLASSES = ("QCD", "TT")
FOLDS = 5
GRID: dict[str, tuple[Any, ...]] = {
    "learning_rate": (0.03, 0.06),
    "max_iter": (200, 400),
    "max_leaf_nodes": (8, 31),
    "min_samples_leaf": (20, 40),
}
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def load() -> tuple[NDArray[np.float32], Ints]:
    with h5py.File(DATA) as file:
        parts = [file[name][..., 0].astype(np.float32) for name in CLASSES]
    return np.concatenate(parts), np.repeat([0, 1], [len(part) for part in parts])


def folds(truth: Ints, seed: int) -> Ints:
    """The fold of every image, each class shared evenly."""
    rng, fold_numbers = np.random.default_rng(seed), np.empty(len(truth), dtype=np.int64)
    for kind in (0, 1):
        rows = rng.permutation(np.flatnonzero(truth == kind))
        fold_numbers[rows] = np.arange(len(rows)) % FOLDS
    return fold_numbers


def auc(scores: Floats, truth: Ints) -> float:
    """The exact area: the share of pairs in the right order."""
    from scipy.stats import rankdata

    ranks, signal = rankdata(scores), truth == 1
    count = int(signal.sum())
    return float((ranks[signal].sum() - count * (count + 1) / 2) / (count * (len(truth) - count)))


def network(images: NDArray[np.float32], truth: Ints, fold_numbers: Ints, kind: str, epochs: int) -> Floats:
    """Log odds of every image by the network that was not trained on it."""
    scores = np.empty(len(truth))
    for fold in range(FOLDS):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            train_rows = np.flatnonzero(fold_numbers != fold)
            # every run is validated; here on training images, and nothing depends on it
            rows = {"train": train_rows, "val": train_rows[::20], "test": np.flatnonzero(fold_numbers == fold)}
            inputs = {split: [str(_write(folder / f"{split}.h5", images, truth, r))] for split, r in rows.items()}
            loaded = load_settings("jetimages", _settings(kind, epochs, fold))
            where = {"output": str(folder / "dataset"), "cache": str(folder / "cache")}
            dataset = clew.prepare(loaded.recipe, loaded.prepare, input=inputs, workers=1, **where)  # type: ignore[arg-type]
            run = clew.train(loaded.recipe, dataset, config=loaded.train, output=folder / "run")
            predictions: Any = clew.predict(run, split="test", weights="last")
            order = [row for kind_ in (0, 1) for row in rows["test"] if truth[row] == kind_]
            probability = predictions.fixed("score_TT")
            scores[order] = np.log(probability + 1e-12) - np.log(predictions.fixed("score_QCD") + 1e-12)
            print(
                f"  network, fold {fold}: AUC {auc(scores[fold_numbers == fold], truth[fold_numbers == fold]):.4f}",
                flush=True,
            )
    return scores


def _settings(kind: str, epochs: int, seed: int) -> list[str]:
    return [
        "data.images=[QCD, TT]",
        f"model.kind={kind}",
        f"model.dropout={0.3 if kind == 'cloud' else 0.1}",
        f"train.epochs={epochs}",
        "train.optimizer.lr=0.002",
        "train.optimizer.weight_decay=0.05",
        "train.ema=0.99",
        "train.workers=1",
        "train.threads=1",
        f"train.seed={seed}",
    ]


def _write(path: Path, images: NDArray[np.float32], truth: Ints, rows: Ints) -> Path:
    with h5py.File(path, "w") as file:
        for kind, name in enumerate(CLASSES):
            file[name] = images[rows[truth[rows] == kind]]
    return path


def inputs(images: NDArray[np.float32]) -> dict[str, Floats]:
    """The inputs of trees: pixels, the shapes that the network computes, both."""
    tensor = torch.from_numpy(images)
    shape_values = shapes(CloudPixels.of(tensor, 64), tensor.sum(dim=(1, 2))).numpy().astype(np.float64)
    pixels = images.reshape(len(images), -1).astype(np.float64)
    return {
        "shapes": shape_values,
        "pixels": pixels,
        "pixels and shapes": np.concatenate([shape_values, pixels], axis=1),
    }


def settings(quick: bool) -> Iterator[dict[str, Any]]:
    for values in itertools.product(*GRID.values()):
        choice = dict(zip(GRID, values, strict=True))
        if not quick or (choice["max_leaf_nodes"], choice["min_samples_leaf"]) == (8, 40):
            yield choice


def trees(features: Floats, truth: Ints, fold_numbers: Ints, chosen: dict[str, Any]) -> Floats:
    from sklearn.ensemble import HistGradientBoostingClassifier

    scores = np.empty(len(truth))
    for fold in range(FOLDS):
        model = HistGradientBoostingClassifier(l2_regularization=1.0, random_state=0, **chosen)
        model.fit(features[fold_numbers != fold], truth[fold_numbers != fold])
        scores[fold_numbers == fold] = model.decision_function(features[fold_numbers == fold])
    return scores


def mean_auc(scores: Floats, truth: Ints, fold_numbers: Ints) -> float:
    return float(np.mean([auc(scores[fold_numbers == fold], truth[fold_numbers == fold]) for fold in range(FOLDS)]))


def best_trees(
    images: NDArray[np.float32], truth: Ints, fold_numbers: Ints, *, quick: bool
) -> Iterator[tuple[str, float, Floats]]:
    """For each kind of input the best of all settings; pixels, which are slow, get the one that suits shapes best."""
    good: list[dict[str, Any]] = list(settings(quick))
    for name, features in inputs(images).items():
        tried = [
            (mean_auc(each, truth, fold_numbers), each)
            for each in (trees(features, truth, fold_numbers, one) for one in good)
        ]
        best = max(range(len(good)), key=lambda place: tried[place][0])
        good, (value, scores) = [good[best]], tried[best]
        yield name, value, scores


def bootstrap(a: Floats, b: Floats, truth: Ints, fold_numbers: Ints, replicas: int) -> tuple[float, float, float]:
    """Errors of both mean AUCs and of their difference, with images resampled within folds and classes."""
    rng = np.random.default_rng(0)
    cells = [np.flatnonzero((fold_numbers == fold) & (truth == kind)) for fold in range(FOLDS) for kind in (0, 1)]
    drawn = []
    for _ in range(replicas):
        rows = np.concatenate([rng.choice(cell, len(cell)) for cell in cells])
        drawn.append([mean_auc(each[rows], truth[rows], fold_numbers[rows]) for each in (a, b)])
    table = np.array(drawn)
    return float(table[:, 0].std()), float(table[:, 1].std()), float((table[:, 0] - table[:, 1]).std())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer epochs and settings")
    parser.add_argument("--kind", choices=("cloud", "cnn"), default="cloud")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0, help="of the folds")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    bars: list[dict[str, Any]] = []
    conditions: dict[str, Any] = {"kind": arguments.kind, "seed": arguments.seed, "environment": capture()}
    if DATA.is_file():
        torch.set_num_threads(1)
        epochs = 10 if arguments.quick else arguments.epochs
        bars = compared(arguments.kind, epochs, arguments.seed, conditions, quick=arguments.quick)
    else:
        print(f"skipped: no {DATA}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"bars": bars, "conditions": conditions}, indent=1) + "\n")
    return int(not all(each["ok"] for each in bars))


def compared(kind: str, epochs: int, seed: int, conditions: dict[str, Any], *, quick: bool) -> list[dict[str, Any]]:
    images, truth = load()
    fold_numbers, start = folds(truth, seed), time.perf_counter()
    network_scores = network(images, truth, fold_numbers, kind, epochs)
    value = mean_auc(network_scores, truth, fold_numbers)
    print(f"network {kind}, {epochs} epochs: mean AUC {value:.4f} ({time.perf_counter() - start:.0f} s)", flush=True)
    bars = []
    conditions |= {"epochs": epochs, "network": value}
    for name, other, tree_scores in best_trees(images, truth, fold_numbers, quick=quick):
        error, other_error, both = bootstrap(network_scores, tree_scores, truth, fold_numbers, 200 if quick else 1000)
        gain = value - other
        print(f"network {value:.4f} ± {error:.4f}, trees on {name} {other:.4f} ± {other_error:.4f}", end=": ")
        print(f"{gain:+.4f} ± {both:.4f} {'ok' if gain > 0 else 'MISSED'}", flush=True)
        conditions[f"trees on {name}"] = {"auc": other, "error": other_error, "of the difference": both}
        bars.append({"name": f"AUC above trees on {name}", "value": gain, "bar": 0.0, "unit": "", "ok": gain > 0})
    return bars


if __name__ == "__main__":
    sys.exit(main())
