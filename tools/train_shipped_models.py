"""Train the models that are part of clew, and write them to src/clew/trained with their cards.

    python tools/train_shipped_models.py tracking-bes3 jets-cones

Events are synthetic, of the generator of each recipe. The figures of a card are of other events, made with the seed
CHECK_SEED; `tests/storage/models/test_shipped.py` makes the same events and compares. What runs record about the
machine is left out of the files.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import clew
from clew.settings import load_settings
from clew.storage.models import SIDECAR, fetch_model, store_model
from clew.storage.models.shipped import FOLDER

SEED, CHECK_SEED = 11, 4711


class ShippedModel(NamedTuple):
    """How a model is trained, and which of its metrics are checked."""

    recipe: str
    events: int
    trained_on: str
    settings: tuple[str, ...]
    figures: tuple[str, ...]
    check_events: int


MODELS = {
    "tracking-bes3": ShippedModel(
        "tracking",
        2000,
        "synthetic BES-III events",
        ("train.epochs=10",),
        ("efficiency", "purity"),
        200,
    ),
    "jets-cones": ShippedModel(
        "jets",
        6000,
        "synthetic jets",
        ("train.epochs=8",),
        ("accuracy",),
        1000,
    ),
    "particleflow-parametric": ShippedModel(
        "particleflow",
        2000,
        "parametric events without pile-up",
        (
            "generator.kind=parametric",
            "generator.pileup=0",
            "data.links=true",
            "model.kind=element",
            "model.correct_pt=true",
            "model.identity_width=64",
            "model.momentum_width=64",
            "metrics.jets=false",
            "train.epochs=6",
            "train.batch_size=32",
            "train.optimizer.lr=2e-3",
            "train.optimizer.lr_rule=none",
        ),
        ("accuracy", "inside/efficiency/neutral_hadron"),
        200,
    ),
    "lartpc-particles": ShippedModel(
        "lartpc",
        4000,
        "synthetic single particles, images shrunk by 5",
        (
            "image.shrink=5",
            "model.unit=5",
            "train.epochs=8",
            "train.batch_size=32",
            "train.schedule.name=cosine",
            "train.schedule.warmup=0.02",
        ),
        ("accuracy",),
        200,
    ),
}


def train_model(name: str, model: ShippedModel) -> None:
    """Train a model in a temporary folder, evaluate it, and store it with its card."""
    loaded = load_settings(
        model.recipe, [*model.settings, "train.threads=1", f"train.seed={SEED}", "train.trace=false"]
    )
    files = [str(path) for path, _ in loaded.recipe.generate(model.events, SEED, Path("events"))]
    data = clew.prepare(loaded.recipe, loaded.prepare, input=files, output="dataset", workers=1)
    start = time.monotonic()
    run = clew.train(loaded.recipe, data, config=loaded.train, output=name)
    minutes = (time.monotonic() - start) / 60
    environment = json.loads(run.environment_file.read_text())
    environment["commit"] = git_commit()
    for key in ("host", "platform", "command"):
        environment.pop(key, None)
    run.environment_file.write_text(json.dumps(environment, indent=1) + "\n")
    shutil.rmtree(run.code_folder, ignore_errors=True)  # of clew itself: the test of figures replaces the comparison
    run.config_file.write_text(run.config_file.read_text().replace(f"{Path.cwd()}/", ""))
    location = store_model(run, "store", ("model",), name=name)
    checked = check_files(model, Path("check"))
    figures = evaluate_figures(fetch_model(location, "fetched"), checked, model)
    card = Path(location) / SIDECAR
    facts: dict[str, Any] = json.loads(card.read_text())
    facts["trained_on"] = f"{model.events:,} {model.trained_on}"
    facts["trained_minutes"] = round(minutes, 1)
    facts["settings"] = list(model.settings)
    facts["commit"] = environment["commit"]
    facts["check"] = {"events": model.check_events, "seed": CHECK_SEED, "figures": figures}
    card.write_text(json.dumps(facts, indent=1) + "\n")
    target = FOLDER / name
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(location, target)
    sys.stdout.write(f"{name}: {figures}, {minutes:.1f} minutes\n")


def git_commit() -> str:
    """The commit of the package, with a plus sign if its files differ from it."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(FOLDER.parent), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--", ".", ":!trained") else "")


def check_files(model: ShippedModel, folder: Path) -> list[str]:
    recipe = load_settings(model.recipe, list(model.settings)).recipe
    return [str(path) for path, _ in recipe.generate(model.check_events, CHECK_SEED, folder)]


def evaluate_figures(run: clew.Run, files: list[str], model: ShippedModel) -> dict[str, float]:
    metrics = clew.evaluate(run, input=files).metrics
    return {figure: metrics[figure].value for figure in model.figures}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*MODELS, []], help="models to train (default: all)")
    names = parser.parse_args().names or list(MODELS)
    for each in names:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            train_model(each, MODELS[each])
            os.chdir("/")
    sys.exit(0)
