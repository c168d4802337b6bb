"""How fast particle-flow events are generated, and whether there are as many elements as published.

CPU time of one process, files of 100 events as `clew data generate particleflow` makes them (writing left out):
Pythia's ttbar and QCD with 200 pile-up once the pool exists, its start for every file counted, and events without
Pythia. The cost of the pool is shown too; it is made once. Published are the mean numbers of elements (5,033 in
ttbar, 5,005 in QCD) and, read off plots, those of particles in ttbar. `--plots FOLDER` draws them, and spectra.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from clew import Table, concat
from clew.recipes.particleflow import generator, pileup, pythia
from clew.recipes.particleflow.columns import CLASSES, TRACK
from clew.recipes.particleflow.generator import ParticleFlowGeneratorConfig
from clew.recipes.particleflow.pileup import PileupPoolConfig
from clew.runs.environment import capture

SPEED = 20.0
ELEMENTS = {"ttbar": 5033.0, "qcd": 5005.0}
PUBLISHED = {"charged hadron": 2600.0, "neutral hadron": 930.0, "photon": 1250.0, "electron": 7.0, "muon": 2.0}
RANGES = {"charged hadron": (1800, 3600), "neutral hadron": (735, 1075)}
"""Published, of single events."""


def pool_cost(config: ParticleFlowGeneratorConfig, part: int) -> float:
    """CPU seconds of the whole pool, estimated from one part."""
    start = time.process_time()
    pythia.PythiaGenerator("minimum bias", 1, energy=config.energy).collisions(part)
    return (time.process_time() - start) * config.pool.size / part


def sample(config: ParticleFlowGeneratorConfig, count: int) -> tuple[Table, float]:
    """Events, and events per CPU second."""
    start = time.process_time()
    tables = [generator.make_events(min(100, count - first), 1, first // 100, config) for first in range(0, count, 100)]
    return concat(tables), count / (time.process_time() - start)


def counts(table: Table) -> dict[str, float]:
    """Mean number of each class per event."""
    pid = table.ragged("targets").values[:, 0].astype(int)
    return dict(zip(CLASSES, (np.bincount(pid, minlength=len(CLASSES)) / len(table)).tolist(), strict=True))


def bar(name: str, value: float, limit: float, unit: str, ok: bool) -> dict[str, Any]:
    return {"name": name, "value": value, "bar": limit, "unit": unit, "ok": bool(ok)}


def compared(table: Table, process: str, *, classes: bool) -> list[dict[str, Any]]:
    """Elements within 5%, classes within 15% of the published numbers."""
    mean = float(table.ragged("elements").lengths.mean())
    off = mean / ELEMENTS[process] - 1
    bars = [bar(f"{process}: elements ({mean:,.0f}) off {ELEMENTS[process]:,.0f}", 100 * off, 5, "%", abs(off) < 0.05)]
    for name, value in counts(table).items():
        if classes and name in PUBLISHED:
            off = value / PUBLISHED[name] - 1
            label = f"{process}: {name}s ({value:,.1f}) off {PUBLISHED[name]:,.0f}"
            bars.append(bar(label, 100 * off, 15, "%", abs(off) < 0.15))
    return bars


def draw(samples: dict[str, Table], folder: Path) -> None:
    """Multiplicities with the published means, and spectra."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    colours = dict(zip(samples, ("tab:blue", "tab:orange", "tab:green"), strict=True))
    figure, axes = plt.subplots(2, 3, figsize=(14, 8), constrained_layout=True)
    for axis, name in zip(axes.flat, ("elements", *PUBLISHED), strict=True):
        _multiplicity(axis, name, {label: _per_event(table, name) for label, table in samples.items()}, colours)
    figure.savefig(folder / "multiplicities.png", dpi=80)
    figure, axes = plt.subplots(1, 3, figsize=(14, 4.2), constrained_layout=True)
    for label, table in samples.items():
        x, y, event_count, colour = (
            table.ragged("elements").values,
            table.ragged("targets").values,
            len(table),
            colours[label],
        )
        track = x[:, 0] == TRACK
        for kind, mask, style in (("tracks", track, "-"), ("towers", ~track, "--")):
            _steps(axes[0], x[mask, 1], np.geomspace(0.05, 300, 50), event_count, f"{label}, {kind}", colour, style)
            _steps(axes[1], x[mask, 2], np.linspace(-5, 5, 51), event_count, f"{label}, {kind}", colour, style)
        for number, style in ((3, "-"), (2, "--")):
            values = y[y[:, 0] == number, 6]
            _steps(
                axes[2], values, np.geomspace(0.2, 2000, 50), event_count, f"{label}, {CLASSES[number]}s", colour, style
            )
    for axis, axis_label in zip(
        axes, ("pT, ET of elements, GeV", "eta of elements", "energy of targets, GeV"), strict=True
    ):
        axis.set_xlabel(axis_label)
        axis.set_ylabel("an event and bin")
        axis.legend(fontsize=7, loc="lower center")
    axes[1].set_ylim(0)
    for axis in (axes[0], axes[2]):
        axis.set_xscale("log")
        axis.set_yscale("log")
    figure.savefig(folder / "spectra.png", dpi=80)


def _multiplicity(axis: Any, name: str, every: dict[str, Any], colours: dict[str, str]) -> None:
    """The distribution of a count over events."""
    highest, lowest = (of([of(values) for values in every.values()]) for of in (max, min))
    edges = (
        np.arange(highest + 2) - 0.5 if highest < 60 else np.linspace(0.97 * lowest, 1.03 * highest, 22).round() - 0.5
    )
    for label, values in every.items():
        share = np.histogram(values, edges)[0] / len(values)
        axis.stairs(share, edges, color=colours[label], label=f"{label}: {values.mean():,.1f}", linewidth=1.5)
    means = ELEMENTS if name == "elements" else {"ttbar": PUBLISHED[name]}
    for label, value in means.items():
        style = "--" if label == "ttbar" else ":"
        axis.axvline(value, color="black", linestyle=style, label=f"published, {label}: {value:,.0f}")
    if name in RANGES:
        axis.axvspan(*RANGES[name], color="black", alpha=0.06, label="published range")
    axis.set_xlabel(name if name == "elements" else f"{name}s")
    axis.set_ylabel("share of events")
    axis.set_ylim(0, 1.45 * axis.get_ylim()[1])
    axis.legend(fontsize=8, ncols=2, loc="upper center")


def _per_event(table: Table, name: str) -> Any:
    like = table.ragged("targets")
    if name == "elements":
        return like.lengths
    return np.bincount(like.events, like.values[:, 0] == CLASSES.index(name), minlength=len(table))


def _steps(axis: Any, values: Any, edges: Any, event_count: int, label: str, colour: str, style: str) -> None:
    heights = np.histogram(values, edges)[0] / event_count
    axis.stairs(np.where(heights > 0, heights, np.nan), edges, label=label, color=colour, linestyle=style)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--quick", action="store_true", help="fewer events and a small pool")
    options.add_argument("--json", type=Path, help="write the figures there")
    options.add_argument("--plots", type=Path, help="draw into this folder")
    arguments = options.parse_args()
    count, size = (100, 2500) if arguments.quick else (600, 10_000)
    configs = {
        "ttbar": ParticleFlowGeneratorConfig(pool=PileupPoolConfig(size=size)),
        "qcd": ParticleFlowGeneratorConfig(process="qcd", pool=PileupPoolConfig(size=size)),
        "parametric": ParticleFlowGeneratorConfig(kind="parametric"),
    }
    pileup.load_pool(configs["ttbar"].pool, configs["ttbar"].energy)
    samples, rates = {}, {}
    for name, config in configs.items():
        samples[name], rates[name] = sample(config, count)
    bars = [
        bar(f"{name}: events generated", rate, SPEED, "a CPU-second", rate >= SPEED) for name, rate in rates.items()
    ]
    for name in ELEMENTS:
        bars += compared(samples[name], name, classes=name == "ttbar")
    cost = pool_cost(configs["ttbar"], 500 if arguments.quick else pileup.COLLISIONS_PER_PART)
    for each in bars:
        verdict = "ok" if each["ok"] else "MISSED"
        print(f"{each['name']:<48} {each['value']:>9.1f}  bar {each['bar']:>4g} {each['unit']:<13} {verdict}")
    print(f"pool of {size:,} collisions, made once: {cost:.0f} CPU-seconds")
    for name, tables in samples.items():
        print(f"{name}: " + ", ".join(f"{value:,.1f} {kind}" for kind, value in counts(tables).items()))
    if arguments.plots:
        draw(samples, arguments.plots)
    if arguments.json:
        conditions = {"events": count, "pool": size, "pool_cpu_s": cost, "environment": capture()}
        arguments.json.write_text(json.dumps({"bars": bars, "conditions": conditions}, indent=1, default=str))
    return 0 if all(each["ok"] for each in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
