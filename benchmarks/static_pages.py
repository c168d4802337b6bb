"""Size and loading time of the pages that clew writes as files, in a real Chromium on the same machine.

Each page is opened from the disk with a new browser profile, at 1400 x 900. A page is complete when every plot of its
visible part is drawn by Plotly; those below are sketches (curves without axes) until their turn. The time until all
plots are drawn is printed too. Every result is a median.

    python benchmarks/static_pages.py [--quick] [--json FILE]
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from _contest import Sheet, main, options

sys.path.insert(0, str(Path(__file__).parent.parent))

import clew
from clew import Run
from clew.recipes.tracking import Tracking
from clew.settings import load_settings
from tests.chromium import QUIET
from tests.server.dashboard.test_static_pages import comparison, report, scaling, study_page, workload

_PLACES = "[...document.querySelectorAll('[data-figure]')]"
_COMPLETE = (
    f"() => {_PLACES}.every(place => place.getBoundingClientRect().top > innerHeight ? place.firstChild : place.data)"
)
_DRAWN = f"() => {_PLACES}.every(place => place.data)"


def trained(folder: Path, events: int) -> Run:
    """A finished and evaluated run of the tracking recipe."""
    raw = folder / "events"
    raw.mkdir()
    list(Tracking().generate(events, 1, raw))
    dataset = clew.prepare("tracking", input=[str(raw)], output=str(folder / "dataset"))
    small = load_settings("tracking", ["model.hidden=16", "train.epochs=3"])
    run = clew.train(small.recipe, dataset, config=small.train, output=folder / "run")
    clew.evaluate(run)
    return run


def seconds_to(browser: Any, path: Path, condition: str) -> float:
    """Open a page; return the seconds until a condition holds."""
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    page = context.new_page()
    page.goto(path.as_uri(), wait_until="commit")
    page.wait_for_function(condition, polling="raf", timeout=120_000)
    taken = float(page.evaluate("() => performance.now()")) / 1000
    context.close()
    return taken


def measure(sheet: Sheet, folder: Path, arguments: argparse.Namespace) -> Mapping[str, Any]:
    from playwright.sync_api import sync_playwright

    events, visits = (300, 3) if arguments.quick else (2000, 9)
    run = trained(folder, events)
    paths = {}
    for write in (report, study_page, comparison, scaling, workload):
        own = folder / write.__name__
        own.mkdir()
        paths[write.__name__.removesuffix("_page")] = write(run, own)
    complete: dict[str, list[float]] = {name: [] for name in paths}
    drawn: dict[str, list[float]] = {name: [] for name in paths}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=list(QUIET))
        for _ in range(visits):
            for name, path in paths.items():
                complete[name].append(seconds_to(browser, path, _COMPLETE))
                drawn[name].append(seconds_to(browser, path, _DRAWN))
        browser.close()
    for name, path in paths.items():
        sheet.bar(f"{name}: size", path.stat().st_size / 1e6, 1.5, "MB", lower=True)
        sheet.bar(f"{name}: complete", median(complete[name]), 1.0, "s", lower=True)
        sheet.state(f"{name}: complete, fastest", min(complete[name]), "s")
        sheet.state(f"{name}: complete, slowest", max(complete[name]), "s")
        sheet.state(f"{name}: all plots drawn", median(drawn[name]), "s")
    return {"events": events, "visits": visits, "cores": os.cpu_count(), "load": os.getloadavg()[0]}


if __name__ == "__main__":
    sys.exit(main(measure, options(__doc__, "300 events, three visits")))
