"""How well the shipped tracking recipe does, from text to tracks, over several seeds.

Every seed makes its own events, its own split and its own training; figures are those of unseen events. The public
BES-III sample (CLEW_TEST_DATA, default ../shared/data) is judged with the same networks where it is there.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import clew
from clew.ledger.environment import capture
from clew.ledger.summary import summarize
from clew.recipe import find
from clew.spec import load

REAL = Path(os.environ.get("CLEW_TEST_DATA", "../shared/data")) / "tracking/ariadne/cgem_50_events.txt"
SHOWN = ("efficiency", "purity", "ghost_rate", "event_ratio", "f1")


def one_seed(seed: int, events: int, epochs: int, folder: Path) -> dict[str, dict[str, float]]:
    """The figures of one seed, by sample."""
    recipe = find("tracking")()
    for _ in recipe.generate(events, seed, folder / "events"):
        pass
    data = clew.prepare(recipe, input=[str(folder / "events")], output=str(folder / "dataset"), workers=2, seed=seed)
    settings = load("tracking", [f"train.epochs={epochs}", "train.workers=2", f"train.seed={seed}"])
    run = clew.train(settings.recipe, data, settings.train, output=folder / "run")
    results = {"unseen synthetic": clew.evaluate(run)}
    if REAL.is_file():
        results["public BES-III sample"] = clew.evaluate(run, input=[str(REAL)], name="real")
    figures = {name: {m: result.tallies[m].value for m in SHOWN} for name, result in results.items()}
    figures["speed"] = {"events/s while training": summarize(run).samples_per_second}
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed, 1,000 events, 12 epochs")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    seeds, events, epochs = ((1,), 1000, 12) if arguments.quick else ((1, 2, 3), 2000, 30)
    found: list[dict[str, dict[str, float]]] = []
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            found.append(one_seed(seed, events, epochs, Path(folder)))
        print(f"seed {seed}: {json.dumps(found[-1]['unseen synthetic'])}", flush=True)
    bars: list[dict[str, Any]] = []
    print(f"\n{'sample':24} {'figure':24} {'mean':>9} {'spread':>9}")
    for sample in found[0]:
        for metric in found[0][sample]:
            values = [each[sample][metric] for each in found]
            mean, spread = statistics.mean(values), statistics.stdev(values) if len(values) > 1 else float("nan")
            print(f"{sample:24} {metric:24} {mean:9.4f} {spread:9.4f}")
            bar = {("unseen synthetic", "efficiency"): 0.9, ("unseen synthetic", "purity"): 0.6}.get((sample, metric))
            if bar is not None:
                name = f"{sample}, {metric}"
                bars.append({"name": name, "value": mean, "bar": bar, "unit": "", "ok": min(values) >= bar})
    conditions = {"seeds": list(seeds), "events": events, "epochs": epochs, "workers": 2, "environment": capture()}
    if arguments.json:
        arguments.json.write_text(json.dumps({"bars": bars, "conditions": conditions}, indent=1) + "\n")
    return int(not all(bar["ok"] for bar in bars))


if __name__ == "__main__":
    sys.exit(main())
