"""How long the list of runs of the dashboard takes over HTTP, with many runs in the database.

    python benchmarks/run_list_page.py [--runs 100000] [--repeat 7] [--database postgresql] [--quick] [--json FILE]

Fills a database with runs of twelve settings and three metrics each, starts `clew serve`, logs in, and times
the list, filters, sorting, grouping and the page of plots: the whole answer, at the client. The target is 300 ms for
list, filter and sort. On a busy machine compare the processor time of the server, the last column; it does not include
the processes of PostgreSQL.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import sqlalchemy as sa

sys.path.insert(0, str(Path(__file__).parent.parent))

from clew.server.database.tables import run_values, runs, value_names
from tests.server.conftest import Live
from tests.server.postgres import running

_PAGES = {
    "list": "/runs",
    "filter by a setting": "/runs?q=lr+%3C+0.002",
    "filter by two and a word": "/runs?q=lr+%3C+0.01+and+efficiency+%3E+0.9+and+run-99",
    "sort by a metric": "/runs?sort=-efficiency",
    "sort by a setting, filtered": "/runs?sort=lr&q=hidden+%3D+32",
    "group by a setting": "/runs?group=hidden&columns=efficiency",
    "plots of 1,000": "/explore",
}
_SETTINGS = [f"model.part{place}.size" for place in range(10)]
_BATCH = 5000
_TARGET = 0.3
_TIMED = ("list", "filter by a setting", "filter by two and a word", "sort by a metric", "sort by a setting, filtered")


def main() -> None:
    """Fill, serve, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--quick", action="store_true", help="2,000 runs")
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    arguments.runs = 2000 if arguments.quick else arguments.runs
    with contextlib.ExitStack() as stack:
        service = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "service"
        address, options = f"sqlite:///{service / 'clew.sqlite'}", ["--no-agent"]
        if arguments.database == "postgresql":
            url = stack.enter_context(running())
            address, options = url.replace("postgresql:", "postgresql+psycopg:"), [*options, "--database", url]
        live = Live(service, tuple(options)).start()
        live.stop()
        _fill(address, arguments.runs)
        live.start()
        try:
            figures = _measure(live, arguments.repeat)
        finally:
            live.stop()
    for name, each in figures.items():
        texts = [f"{part} {1000 * each[part]:6.0f} ms" for part in ("median", "slowest", "cpu")]
        print(f"{name:<28} {'   '.join(texts)}")
    medians = {name: figures[name]["median"] for name in _TIMED}
    bars = [
        {"name": name, "value": seconds, "bar": _TARGET, "unit": "s", "ok": seconds <= _TARGET}
        for name, seconds in medians.items()
    ]
    if arguments.json is not None:
        conditions = {
            "database": arguments.database,
            "runs": arguments.runs,
            "cores": os.cpu_count(),
            "load": os.getloadavg()[0],
        }
        document = {"bars": bars, "conditions": conditions, "pages": figures}
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")


def _fill(address: str, count: int) -> None:
    engine = sa.create_engine(address)
    names = ["train.optimizer.lr", "model.hidden", *_SETTINGS, "val/efficiency", "val/purity", "val/loss"]
    with engine.begin() as connection:
        connection.execute(value_names.insert(), [{"id": place, "name": name} for place, name in enumerate(names, 1)])
    for begin in range(0, count, _BATCH):
        numbers = range(begin + 1, min(begin + _BATCH, count) + 1)
        with engine.begin() as connection:
            connection.execute(runs.insert(), [_run(number) for number in numbers])
            connection.execute(run_values.insert(), [row for number in numbers for row in _values(number, len(names))])
    with engine.begin() as connection:
        connection.execute(sa.text("ANALYZE"))
    engine.dispose()


def _run(number: int) -> dict[str, Any]:
    moment = 1.7e9 + 60 * number
    facts = {"owner": 1, "uid": f"uid-{number}", "name": f"run-{number:06d}", "recipe": "tracking", "host": "node"}
    states = ("finished", "failed", "stopped", "finished", "finished")
    values = {"state": states[number % 5], "message": "", "config": {}, "environment": {}, "epochs": 10, "workers": 1}
    values |= {"epochs_done": 10, "samples_per_second": 100.0, "metrics": {"efficiency": number % 997 / 997}}
    return {**facts, **values, "created": moment, "begun": moment, "updated": moment + 50, "ended": moment + 50}


def _values(number: int, count: int) -> list[dict[str, Any]]:
    numbers = [0.0001 * (1 + number % 300), float(8 * (1 + number % 8)), *(float(number % (3 + n)) for n in range(10))]
    numbers += [number % 997 / 997, number % 883 / 883, number % 769 / 769]
    return [{"run": number, "name": place + 1, "number": numbers[place], "text": None} for place in range(count)]


def _measure(live: Live, repeat: int) -> dict[str, dict[str, float]]:
    figures = {}
    assert live.process is not None
    server = psutil.Process(live.process.pid)
    with httpx.Client(base_url=live.url, timeout=120, headers={"Origin": live.url}) as client:
        client.post("/login", data={"token": live.token, "next": "/runs"})
        for name, path in _PAGES.items():
            assert client.get(path).status_code == 200, path
            times, before = [], sum(server.cpu_times()[:2])
            for _ in range(repeat):
                start = time.perf_counter()
                client.get(path)
                times.append(time.perf_counter() - start)
            spent = (sum(server.cpu_times()[:2]) - before) / repeat
            figures[name] = {"median": statistics.median(times), "slowest": max(times), "cpu": spent}
    return figures


if __name__ == "__main__":
    main()
