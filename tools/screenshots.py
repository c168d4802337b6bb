"""Take screenshots of the dashboard for docs/images, of a real server with a few small trainings and a study.

    python tools/screenshots.py [--folder DIR] [--output docs/images] [--all DIR]

Takes a few minutes. Needs Chromium and playwright, and the extra `serve`. With --folder, existing trainings in that
folder are used again. With --all, every page is also taken at 1400, 800 and 390 px, light and dark, to look at.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Page, sync_playwright

sys.path.insert(0, str(Path(__file__).parent.parent))

import clew
from clew.data.prepare.generate import generate
from clew.jobs.supervisor import kill_marked
from clew.recipe import find
from tests.chromium import QUIET
from tests.server.conftest import Live
from tests.server.dashboard.conftest import Visitor

_SIZE = {"width": 1240, "height": 800}
_WIDTHS = (1400, 800, 390)
_ENDS = ("done", "failed", "cancelled", "lost")


def main() -> None:
    """Train, then take screenshots."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--output", type=Path, default=Path("docs/images"))
    parser.add_argument("--all", type=Path, default=None)
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp())
    dataset = _dataset(folder)
    live = Live(folder / "service", options=(), token=_saved_token(folder)).start()
    (folder / "token").write_text(live.token)
    try:
        with live.client() as client:
            if not client.get("/api/v1/jobs").json()["items"]:
                _demo(live, folder)
                _fill(client, dataset)
                _benchmark(client)
            _submit(client, dataset, "tracking-live", 100_000, lr=0.0005, log_every=20)
            time.sleep(25)
            _photograph(live, arguments.output)
            if arguments.all is not None:
                _photograph_all(live, arguments.all)
            for job in client.get("/api/v1/jobs", params={"state": "running"}).json()["items"]:
                client.post(f"/api/v1/jobs/{job['id']}/cancel")
            time.sleep(5)
    finally:
        live.stop()
        for attempt in (folder / "service" / "agent" / "jobs").glob("*/attempt-*"):
            kill_marked(str(attempt.absolute()))  # jobs outlive the server


def _saved_token(folder: Path) -> str:
    return (folder / "token").read_text() if (folder / "token").exists() else ""


def _dataset(folder: Path) -> Path:
    if not (folder / "dataset").exists():
        generate(find("tracking")(), 1000, 1, folder / "events", workers=1)
        clew.prepare("tracking", input=[str(folder / "events")], output=str(folder / "dataset"), workers=1)
    return folder / "dataset"


def _submit(client: Any, dataset: Path, name: str, epochs: int, **more: Any) -> int:
    train = {"epochs": epochs, "log_every": more.pop("log_every", 2), "monitor_seconds": 1.0}
    spec = {"recipe": "tracking", "train": {**train, "optimizer": {"lr": more.pop("lr", 0.002)}}, **more}
    body = {"kind": "train", "name": name, "spec": spec, "dataset": str(dataset)}
    response = client.post("/api/v1/jobs", json=body)
    response.raise_for_status()
    return int(response.json()["id"])


def _demo(live: Live, folder: Path) -> None:
    """A run in the foreground, with evaluations, plots and a report."""
    command = [
        sys.executable,
        "-c",
        "from clew.cli.main import run; run()",
        "demo",
        "--push",
        "--events",
        "1000",
        "--epochs",
        "4",
    ]
    login = {"CLEW_SERVER": live.url, "CLEW_TOKEN": live.token}
    subprocess.run(command, check=True, cwd=folder, env={**os.environ, **login})


def _benchmark(client: Any) -> None:
    sizes = [{"strategy": "allreduce", "workers": count, "speedup": round(count**0.9, 2)} for count in (1, 2, 4, 8)]
    document = {"kind": "scale", "sizes": sizes}
    client.post("/api/v1/benchmarks", json={"name": "scale", "document": document}).raise_for_status()


def _fill(client: Any, dataset: Path) -> None:
    """Start trainings that succeed, one that fails, and a study, and wait for them."""
    job_ids = [
        _submit(client, dataset, "tracking-baseline", 12),
        _submit(client, dataset, "tracking-slow", 12, lr=0.0002),
        _submit(client, dataset, "tracking-narrow", 12, model={"hidden": 16}),
        _submit(client, dataset, "tracking-wild", 5, lr=1e30),
    ]
    space = {"train.optimizer.lr": {"log": [1e-4, 3e-2]}, "model.hidden": {"choice": [16, 32, 64]}}
    tune = {"space": space, "objective": "val/loss", "trials": 14, "parallel": 1, "sampler": {"name": "tpe", "seed": 1}}
    spec = {"recipe": "tracking", "train": {"epochs": 3, "threads": 1}, "tune": tune}
    body = {"kind": "tune", "name": "rate-and-width", "spec": spec, "dataset": str(dataset)}
    job_ids.append(int(client.post("/api/v1/jobs", json=body).raise_for_status().json()["id"]))
    while job_ids:
        time.sleep(2)
        job_ids = [job for job in job_ids if client.get(f"/api/v1/jobs/{job}").json()["state"] not in _ENDS]
    newest = client.get("/api/v1/runs").json()["items"]
    for run in newest:
        if run["name"] == "tracking-baseline":
            client.put(f"/api/v1/runs/{run['id']}/tags", json={"tags": ["paper"]})


def _photograph(live: Live, output: Path) -> None:
    with live.client() as client:
        newest_last = reversed(client.get("/api/v1/runs?limit=1000").json()["items"])
        runs = {run["name"]: run["id"] for run in newest_last}
        studies = client.get("/api/v1/studies").json()["items"]
    chosen = [runs[f"tracking-{name}"] for name in ("baseline", "slow", "narrow")]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=list(QUIET))
        for scheme, pages in {
            "light": {
                "overview": "/",
                "compare": f"/compare?run={chosen[0]}&run={chosen[1]}&run={chosen[2]}",
                "submit": "/submit",
            },
            "dark": {
                "run": f"/runs/{runs['tracking-live']}",
                **({"study": f"/studies/{studies[0]['id']}"} if studies else {}),
            },
        }.items():
            visitor = Visitor(browser, live, live.token, color_scheme=scheme)
            visitor.page.set_viewport_size(_SIZE)
            for name, path in pages.items():
                _take(visitor.open(path), output / f"dashboard-{name}.png")
        browser.close()


def _photograph_all(live: Live, output: Path) -> None:
    """Take every page as a whole, in all widths and both themes."""
    output.mkdir(parents=True, exist_ok=True)
    with live.client() as client:
        runs = [run["id"] for run in client.get("/api/v1/runs?limit=1000").json()["items"] if run["study"] is None]
        studies = [each["id"] for each in client.get("/api/v1/studies").json()["items"]]
        jobs = [each["id"] for each in client.get("/api/v1/jobs").json()["items"]]
    pages = ["/", "/runs", "/explore", "/studies", "/jobs", "/datasets", "/benchmarks", "/submit", "/accounts"]
    demo = runs[-1]
    pages += ["/runs?group=lr&columns=val/loss", f"/runs/{demo}/report"]
    pages += [f"/runs/{demo}{part}" for part in ("", "/system", "/plots", "/files", "/log", "/config", "/environment")]
    pages += ["/compare?" + "&".join(f"run={run}" for run in runs[-3:]), f"/jobs/{jobs[-1]}"]
    pages += [f"/studies/{study}" for study in studies[:1]]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=list(QUIET))
        for scheme in ("light", "dark"):
            visitor = Visitor(browser, live, live.token, color_scheme=scheme)
            for width in _WIDTHS:
                visitor.page.set_viewport_size({"width": width, "height": 900})
                for path in pages:
                    page = visitor.open(path)
                    page.wait_for_timeout(1500)
                    name = path.split("&")[0].strip("/").translate(str.maketrans("/?=", "---")) or "overview"
                    page.screenshot(path=str(output / f"{name}-{width}-{scheme}.png"), full_page=True)
        browser.close()


def _take(page: Page, path: Path) -> None:
    if "/submit" in page.url:
        page.click("details:has([name='train.epochs']) > summary")
        page.fill("[name='train.epochs']", "50")
    page.wait_for_timeout(2500)
    page.screenshot(path=str(path))
    Image.open(path).convert("RGB").quantize(128).save(path, optimize=True)
    print(f"{path}: {path.stat().st_size / 1000:.0f} kB")  # noqa: T201


if __name__ == "__main__":
    main()
