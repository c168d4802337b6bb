"""Loading times of dashboard pages in a real Chromium on the same machine, for a run with a million recorded steps.

Measured is the time from the click to the last visible curve, with its data from the server. Curves are first drawn
plainly, and then by plotly when it has loaded, which is also stated. Then follows a zoom into a twentieth of the run,
until the finer curve is drawn. Every result is a median, each measurement with a new browser profile without caches.

    python benchmarks/dashboard.py [--quick] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from _contest import Sheet, main, options

sys.path.insert(0, str(Path(__file__).parent.parent))

from clew.client.connection import Connection
from clew.runs import Run
from clew.runs.push import Pusher
from tests.chromium import QUIET
from tests.server.conftest import Live
from tests.server.dashboard.conftest import Visitor

_DRAWN = """() => {
  const all = [...document.querySelectorAll('[data-curves]')];
  const inside = all.filter(place => place.getBoundingClientRect().top < innerHeight);
  return inside.length > 0 && inside.every(p => p.querySelector(WHAT));
}"""
_ZOOM = """([from, to]) => new Promise(done => {
  const place = document.querySelector('.js-plotly-plot'), start = performance.now();
  const coarse = Math.max(...place.data.map(t => t.x.length ? t.x[t.x.length - 1] : 0));
  const look = () => {
    const ends = place.data.filter(t => t.x.length).map(t => t.x[t.x.length - 1]);
    const finer = Math.max(...ends) < coarse;
    requestAnimationFrame(finer ? () => done(performance.now() - start) : look);
  };
  Plotly.relayout(place, {'xaxis.range[0]': from, 'xaxis.range[1]': to});
  requestAnimationFrame(look);
})"""


def long_run(folder: Path, records: int) -> Run:
    """A run folder with `records` steps."""
    run = Run.create(folder / "long", config={"recipe": "load"}, environment={"host": "load"})
    times = {"seconds": 0.1, "wait": 0.01, "communicate": 0.0}
    with (run.records_folder / "rank-0.jsonl").open("w") as file:
        for seq in range(records):
            loss = {"loss": 1 / (1 + seq / 1000) + (seq * 7919 % 1000) / 5000}
            facts = {"epoch": 0, "step": seq + 1, "samples": 64 * seq, "loss": loss, "lr": 1e-3}
            file.write(json.dumps({"seq": seq, "time": 1e9 + seq / 10, "kind": "step", **facts, **times}) + "\n")
    return run


def visit(browser: Any, live: Live, path: str) -> tuple[Any, float, float]:
    """Log in and open a page; return the visitor, and the seconds until all visible curves were drawn, and until
    they could be zoomed."""
    visitor = Visitor(browser, live, live.token)
    page = visitor.open(path, wait="commit")
    times = []
    for what in ("'.sketch path, .scatterlayer path'", "'.scatterlayer path'"):
        page.wait_for_function(_DRAWN.replace("WHAT", what), polling="raf")
        times.append(float(page.evaluate("() => performance.now()")) / 1000)
    return visitor, times[0], times[1]


def measure(sheet: Sheet, folder: Path, arguments: argparse.Namespace) -> Mapping[str, Any]:
    from playwright.sync_api import sync_playwright

    records, repeats = (20_000, 2) if arguments.quick else (1_000_000, 7)
    run = long_run(folder, records)
    live = Live(folder / "service", ("--no-agent",)).start()
    with Connection(live.url, live.token) as link:
        pusher = Pusher(run, link)
        pusher.push()
    pages: dict[str, list[float]] = {"": [], "/system": []}
    zooms, ready = [], []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=list(QUIET))
        for _ in range(repeats):
            for part, times in pages.items():
                visitor, taken, full_run = visit(browser, live, f"/runs/{pusher.number}{part}")
                times.append(taken)
                ready.append(full_run)
                if not part:
                    window = [records // 2, records // 2 + records // 20]
                    zooms.append(float(visitor.page.evaluate(_ZOOM, window)) / 1000)
                visitor.context.close()
        browser.close()
    live.stop()
    for part, name in (("", "curves"), ("/system", "speed and system")):
        sheet.bar(f"page of a run of {records:,} steps: {name}", median(pages[part]), 2, "s", lower=True)
        sheet.state(f"{name}: fastest", min(pages[part]), "s")
        sheet.state(f"{name}: slowest", max(pages[part]), "s")
    sheet.state("until it can be zoomed: median of all", median(ready), "s")
    sheet.bar("zoom into a twentieth of it", median(zooms), 2, "s", lower=True)
    return {"steps": records, "visits": repeats, "cores": os.cpu_count()}


if __name__ == "__main__":
    sys.exit(main(measure, options(__doc__, "20,000 steps, two visits")))
