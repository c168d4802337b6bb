"""Networks of the recipe `jets` beside ParticleNet and the Particle Transformer of weaver-core, on the same jets.

Top jets against QCD with the selection of the public top-tagging set (zenodo.org/records/2603256), in files of its
layout, but generated here: Pythia at 14 TeV without multiple interactions, anti-kT with R = 0.8, pT from 550 to 650
GeV, |eta| < 2, no detector, and a hundredth of the jets. The published networks are those of weaver-core, as small as
those of clew, and trained by clew: same jets, batches, steps, schedule, optimiser and loss. Batches are random: those
of jets of similar length, which are the default of `jets`, spoil batch normalisation, which weaver's networks have.
The learning rate of each network is the one with the best area on validation jets in a shorter training. Boosted
trees on 45 shapes, mass and pT are the tool used today. Test jets are the same for all; figures are means over seeds.
The error of a difference is that of a paired bootstrap over test jets, and the spread over seeds divided by the root
of their number.

It works in pieces: it starts nothing after `--seconds`, and continues when called again with the same `--folder`.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from _contest import Sheet, main, options
from _published_taggers import MOMENTA
from numpy.typing import NDArray

import clew
from clew import Dataset
from clew.cli.start.recipe_template import settings_files
from clew.data.dataset.batch import to_batch
from clew.recipes.jets.cloud import CloudPixels, shapes
from clew.recipes.jets.network import padded
from clew.settings import load_settings

Floats = NDArray[np.float64]
SEED = 20
"""Seed of the generated jets."""
RATES = (1e-3, 2e-3, 4e-3)
"""Learning rates that are tried. If the lowest is the best, half of it is tried too, and so on."""
RATE_EPOCHS = 4
EFFICIENCIES = (0.3, 0.5)
FIGURES = ("AUC", "accuracy", "rejection at 30%", "rejection at 50%")
REPLICAS = 200
CELL = 1.6 / 30
"""Unit of positions for shapes: the pixels of the public jet images."""
GRID = {"learning_rate": (0.05, 0.1), "max_iter": (200, 400), "max_leaf_nodes": (8, 31)}
TREES = "boosted trees on shapes"
PUBLISHED = {
    "ParticleNet-Lite (26k parameters)": ("0.9844", "0.937", "1262 ± 49", "325 ± 5"),
    "ParticleNet (366k)": ("0.9858", "0.940", "1615 ± 93", "397 ± 7"),
    "Particle Transformer (2.1M)": ("0.9858", "0.940", "1602 ± 81", "413 ± 16"),
}
"""Figures on the public set: 1.2 million jets for training, and a detector. They say nothing about these jets."""


class Contestant(NamedTuple):
    """A network: its recipe, its settings, and the published one that it is compared with."""

    recipe: str
    settings: tuple[str, ...] = ()
    beside: str = ""


TAGGERS = Path(__file__).with_name("_published_taggers.py")
CONTESTANTS = {
    "clew particlenet": Contestant(
        "jets", ("model={kind: particlenet, width: 32, layers: 2, neighbours: 7, dropout: 0.1}",), "ParticleNet"
    ),
    "clew edgeconv": Contestant(
        "jets", ("model={kind: edgeconv, width: 32, layers: 3, neighbours: 8}",), "ParticleNet"
    ),
    "ParticleNet": Contestant(f"{TAGGERS}:PublishedParticleNet"),
    "clew transformer with pairs": Contestant(
        "jets", ("model={kind: transformer, width: 32, layers: 3, pairs: 16}",), "Particle Transformer"
    ),
    "Particle Transformer": Contestant(f"{TAGGERS}:PublishedParticleTransformer"),
}


class Scores(NamedTuple):
    """Scores of jets by their class, 1 for top."""

    score: Floats
    truth: NDArray[np.int64]


class OutOfTimeError(Exception):
    """Raised if the time of this call is used up."""


class Study:
    """Jets, datasets and trainings in a folder. What is there is not made again."""

    def __init__(self, folder: Path, arguments: argparse.Namespace) -> None:
        self.folder, self._arguments, self._start = folder, arguments, time.monotonic()
        self._yaml = settings_files()["jets/toptagging"].read_text()

    def dataset(self, contestant: Contestant) -> Dataset:
        """The prepared jets: weaver's networks get four momenta too."""
        place = self.folder / ("data-clew" if contestant.recipe == "jets" else "data-weaver")
        if not (place / "done").exists():
            files = {split: self._files(split) for split in ("train", "val", "test")}
            loaded = self._loaded(contestant)
            where = {"output": str(place), "cache": str(self.folder / "cache")}
            clew.prepare(loaded.recipe, loaded.prepare, input=files, workers=1, replace=True, **where)  # type: ignore[arg-type]
            (place / "done").touch()
        return Dataset(place)

    def rate(self, name: str) -> float:
        """The learning rate that is given, or the one with the best area on validation jets after RATE_EPOCHS."""
        if name in self._arguments.rates:
            return float(self._arguments.rates[name])
        tried: dict[float, float] = {}
        new: tuple[float, ...] = RATES
        while new:
            tried |= {rate: Curve(self.scores(name, 0, rate, RATE_EPOCHS, "val")).figures()[0] for rate in new}
            best = max(tried, key=tried.__getitem__)
            new = (best / 2,) if best == min(tried) else ()
        return best

    def scores(self, name: str, seed: int, rate: float, epochs: int, split: str) -> Scores:
        """Scores of a training. It is made if it is missing."""
        contestant = CONTESTANTS[name]
        place = self.folder / f"{name.replace(' ', '-')}-seed{seed}-rate{rate:g}-epochs{epochs}"
        file = place.with_suffix(f"{place.suffix}-{split}.npz")
        if not file.exists():
            data, start = self.dataset(contestant), self.now(f"{name}, seed {seed}")
            train = [f"train.seed={seed}", f"train.epochs={epochs}", f"train.optimizer.lr={rate}"]
            loaded = self._loaded(contestant, train)
            run = clew.train(loaded.recipe, data, config=loaded.train, output=place / f"run-{time.time_ns()}")
            rows: Any = clew.predict(run, split=split, columns=["label"], batch_size=256)
            odds = np.log(rows.fixed("score_top") + 1e-300) - np.log(rows.fixed("score_QCD") + 1e-300)
            np.savez(file, score=odds, truth=rows.fixed("label"))
            area, seconds = Curve(Scores(odds, rows.fixed("label"))).figures()[0], time.monotonic() - start
            print(f"# {name}, seed {seed}, rate {rate:g}, {epochs} epochs: {split} AUC {area:.4f} ({seconds:.0f} s)")
        with np.load(file) as stored:
            return Scores(stored["score"], stored["truth"])

    def model(self, name: str) -> torch.nn.Module:
        torch.manual_seed(0)
        model: torch.nn.Module = self._loaded(CONTESTANTS[name]).recipe.model()
        return model

    def now(self, what: str) -> float:
        """The time, if there is some left.

        Raises:
            OutOfTimeError: There is none.
        """
        if time.monotonic() - self._start > self._arguments.seconds:
            raise OutOfTimeError(what)
        return time.monotonic()

    def _loaded(self, contestant: Contestant, more: list[str] | None = None) -> Any:
        stem = contestant.recipe.rpartition(":")[2]
        path = self.folder / f"{stem}.yaml"
        path.write_text(self._yaml.replace("recipe: jets", f"recipe: {contestant.recipe}"))
        settings = [
            f"constituents.max_constituents={self._arguments.constituents}",
            *contestant.settings,
            *(more or ()),
        ]
        if contestant.recipe != "jets":
            inputs = [*load_settings(str(path)).recipe.config.constituents.inputs, *MOMENTA]
            settings.append(f"constituents.inputs={json.dumps(inputs)}")
        settings += ["train.workers=1", "train.threads=1", "train.keep_checkpoints=1", "train.loading.bucket=null"]
        return load_settings(str(path), settings)

    def _files(self, split: str) -> list[str]:
        """Generated files of a split: training jets have the seed SEED, and so on."""
        number = ("train", "val", "test").index(split)
        jets = getattr(self._arguments, split)
        recipe, made = self._loaded(CONTESTANTS["clew edgeconv"]).recipe, list[str]()
        for first in range(0, jets, 1000):
            start, place = time.monotonic(), self.folder / "jets" / split
            missing = not list(place.glob(f"*-{first // 1000:05d}.h5"))
            if missing:
                self.now("jets")
            if missing and list(recipe.generate(min(1000, jets - first), SEED + number, place, first)):
                print(f"# {split}, jets from {first}: {time.monotonic() - start:.0f} s", flush=True)
            made += [str(path) for path in place.glob(f"*-{first // 1000:05d}.h5")]
        return made


class Curve:
    """Figures of scores, for any weights of jets."""

    def __init__(self, scores: Scores) -> None:
        self._order = np.argsort(-scores.score, kind="stable")
        self._truth = scores.truth[self._order] == 1
        self._right = (scores.score[self._order] > 0) == self._truth

    def figures(self, weights: Floats | None = None) -> Floats:
        """AUC, accuracy, and the rejection of QCD at the efficiencies for top; at least half a jet of QCD passes."""
        weight = np.ones(len(self._order)) if weights is None else weights[self._order]
        real, fake = np.cumsum(weight * self._truth), np.cumsum(weight * ~self._truth)
        area = float((fake * weight * self._truth).sum() / (real[-1] * fake[-1]))
        passed = [fake[np.searchsorted(real, share * real[-1])] for share in EFFICIENCIES]
        return np.array([1 - area, np.average(self._right, weights=weight), *(fake[-1] / max(n, 0.5) for n in passed)])


def bootstrap(curves: Mapping[str, list[Curve]], jets: int) -> dict[str, Floats]:
    """Means over seeds of all figures, (REPLICAS, figures), with the same resampled jets for every contestant."""
    rng, replicas = np.random.default_rng(0), {name: list[Floats]() for name in curves}
    for _ in range(REPLICAS):
        weights = rng.poisson(1.0, jets).astype(np.float64)
        for name, each in curves.items():
            replicas[name].append(np.mean([curve.figures(weights) for curve in each], axis=0))
    return {name: np.array(values) for name, values in replicas.items()}


def trees(study: Study) -> Scores:
    """Scores of boosted trees, with the settings that suit validation jets best."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    file = study.folder / "trees.npz"
    if not file.exists():
        data, start = study.dataset(CONTESTANTS["clew edgeconv"]), study.now("trees")
        (x, y), (x_val, y_val), (x_test, y_test) = (features(data, split) for split in ("train", "val", "test"))
        models = [
            HistGradientBoostingClassifier(
                random_state=0, l2_regularization=1.0, **dict(zip(GRID, values, strict=True))
            )
            for values in itertools.product(*GRID.values())
        ]
        areas = [Curve(Scores(each.fit(x, y).decision_function(x_val), y_val)).figures()[0] for each in models]
        np.savez(file, score=models[int(np.argmax(areas))].decision_function(x_test), truth=y_test)
        print(f"# {TREES}: {time.monotonic() - start:.0f} s", flush=True)
    with np.load(file) as stored:
        return Scores(stored["score"], stored["truth"])


def features(data: Dataset, split: str) -> tuple[Floats, NDArray[np.int64]]:
    """Shapes of jets, their mass and pT, and the class."""
    samples = data.read(split)
    parts = []
    for first in range(0, len(samples), 500):
        values, mask = padded(to_batch(samples.slice(first, first + 500), ("constituents",)).ragged("constituents"))
        pt = torch.exp(values[:, :, 3] / 0.7 + 1.7) * mask  # the inverse of the input log(part_pt)
        pixels = CloudPixels(pt, values[:, :, 0] / CELL, values[:, :, 1] / CELL, mask)
        parts.append(shapes(pixels, pt.sum(dim=1)).numpy())
    more = np.stack([samples.fixed("jet_mass"), samples.fixed("jet_pt")], axis=1)
    return np.concatenate([np.concatenate(parts), more], axis=1).astype(np.float64), samples.fixed("label")


def speeds(study: Study, names: list[str], rounds: int) -> dict[str, tuple[float, float]]:
    """Jets per second of processor time, in training (forward and backward) and in evaluation; batches of 128 jets
    in turns."""
    torch.set_num_threads(1)
    models = {name: study.model(name) for name in names}
    times = {name: (list[float](), list[float]()) for name in names}
    jets = {name: study.dataset(CONTESTANTS[name]).read("val") for name in names}
    for turn, name in itertools.product(range(rounds), names):
        first = 128 * (turn % max(len(jets[name]) // 128, 1))
        samples = jets[name].slice(first, min(first + 128, len(jets[name])))
        batch = padded(to_batch(samples, ("constituents",)).ragged("constituents"))
        models[name].train()
        times[name][0].append(_seconds(lambda model=models[name], batch=batch: model(*batch).sum().backward()))  # type: ignore[misc]
        models[name].eval()
        with torch.inference_mode():
            times[name][1].append(_seconds(partial(models[name], *batch)))
    return {
        name: (128 / statistics.median(one), 128 / statistics.median(other)) for name, (one, other) in times.items()
    }


def _seconds(work: Callable[[], Any]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def finished(
    study: Study, names: list[str], arguments: argparse.Namespace
) -> Iterator[tuple[str, float, list[Scores]]]:
    """Rate and scores of every contestant, seed after seed, as far as the time allows."""
    rates = {name: RATES[0] if arguments.quick else study.rate(name) for name in names}
    for seed, name in itertools.product(arguments.seeds, names):
        study.scores(name, seed, rates[name], arguments.epochs, "test")
    for name in names:
        yield name, rates[name], [study.scores(name, s, rates[name], arguments.epochs, "test") for s in arguments.seeds]


def measure(sheet: Sheet, folder: Path, arguments: argparse.Namespace) -> Mapping[str, Any]:
    if arguments.quick:
        arguments.train, arguments.val, arguments.test, arguments.epochs = 400, 100, 400, 1
        arguments.seeds, arguments.folder = arguments.seeds[:1], None
    study = Study(arguments.folder or folder, arguments)
    study.folder.mkdir(parents=True, exist_ok=True)
    needed = {"pythia8mc", "fastjet", *(["weaver"] if importlib.util.find_spec("weaver") else [])}
    names = [name for name, each in CONTESTANTS.items() if each.recipe == "jets" or "weaver" in needed]
    names = [name for name in names if name in (arguments.only or names)]
    facts: dict[str, Any] = {"arguments": {key: str(value) for key, value in vars(arguments).items()}}
    try:
        done = list(finished(study, names, arguments))
        every = {name: scores for name, _, scores in done}
        every |= {TREES: [trees(study)]} if TREES in (arguments.only or [TREES]) else {}
        facts["rates"] = {name: rate for name, rate, _ in done}
        facts["jets/s in training, in evaluation"] = timed = speeds(study, names, 2 if arguments.quick else 24)
    except OutOfTimeError as missing:
        print(f"# {missing} and what follows is missing: call again with the same --folder")
        return facts | {"missing": str(missing)}
    facts["parameters"] = {name: sum(each.numel() for each in study.model(name).parameters()) for name in names}
    facts["figures"] = report(sheet, every, facts["parameters"], timed)
    facts["published, other jets"] = PUBLISHED
    return facts


def report(
    sheet: Sheet, every: dict[str, list[Scores]], sizes: dict[str, int], timed: dict[str, tuple[float, float]]
) -> dict[str, Any]:
    """Print the table and the bars; return means, spreads over seeds and bootstrap errors."""
    curves = {name: [Curve(each) for each in scores] for name, scores in every.items()}
    replicas = bootstrap(curves, len(next(iter(every.values()))[0].truth))
    values = {name: np.array([each.figures() for each in some]) for name, some in curves.items()}
    spreads = {name: each.std(axis=0, ddof=1) if len(each) > 1 else np.zeros(4) for name, each in values.items()}
    print(f"\n| test jets | parameters | {' | '.join(FIGURES)} | jets/s, training | jets/s, evaluation |")
    print(f"|{' --- |' * 8}")
    for name, each in values.items():
        errors = zip(each.mean(axis=0), spreads[name], replicas[name].std(axis=0), FIGURES, strict=True)
        cells = [_cell(mean, spread, error, what) for mean, spread, error, what in errors]
        fast = [f"{speed:,.0f}" for speed in timed.get(name, ())] or ["", ""]
        print(f"| {name} | {sizes.get(name, '')} | {' | '.join([*cells, *fast])} |")
    for name, cells in PUBLISHED.items():  # type: ignore[assignment]
        print(f"| published, other jets: {name} | | {' | '.join(cells)} | | |")
    print()
    beside = [(name, each.beside) for name, each in CONTESTANTS.items() if {name, each.beside} <= values.keys()]
    for name, other in beside:
        count = len(values[name])
        differences = (replicas[name] - replicas[other]).std(axis=0)
        for place, what in enumerate(FIGURES):
            gain = float(values[name].mean(axis=0)[place] - values[other].mean(axis=0)[place])
            seeds = math.hypot(spreads[name][place], spreads[other][place]) / math.sqrt(count)
            error = math.hypot(float(differences[place]), seeds)
            sheet.stated |= {f"{what}: {name} minus {other}": gain, f"{what}: {name} minus {other}, error": error}
            digits = 1 if "rejection" in what else 4
            print(f"  {what}: {name} minus {other}: {gain:+.{digits}f} ± {error:.{digits}f}", flush=True)
            if what != "accuracy":
                sheet.bar(f"{what}: {name} minus {other}, in errors", gain / max(error, 1e-9), -1.0, "sigma")
    keys = ("mean", "spread over seeds", "bootstrap error")
    return {
        name: dict(
            zip(
                keys,
                (each.mean(axis=0).tolist(), spreads[name].tolist(), replicas[name].std(axis=0).tolist()),
                strict=True,
            )
        )
        for name, each in values.items()
    }


def _cell(mean: float, spread: float, error: float, what: str) -> str:
    """Mean over seeds ± spread over seeds (bootstrap error of the mean)."""
    digits = 0 if "rejection" in what else 4
    return f"{mean:.{digits}f} ± {spread:.{digits}f} ({error:.{digits}f})"


if __name__ == "__main__":
    parser = options(__doc__, "400 jets, one epoch, one seed")
    parser.add_argument("--folder", type=Path, help="jets, trainings and scores, to continue with")
    parser.add_argument("--seconds", type=float, default=540, help="start nothing after so long")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--train", type=int, default=12_000, help="jets for training")
    parser.add_argument("--val", type=int, default=2_000)
    parser.add_argument("--test", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument(
        "--rates", type=json.loads, default={}, help="learning rates by name, as JSON; the others are tried"
    )
    parser.add_argument("--only", nargs="+", choices=[*CONTESTANTS, TREES], help="these contestants")
    parser.add_argument("--constituents", type=int, default=48, help="the hardest are used")
    sys.exit(main(measure, parser))
