"""Run every benchmark in the folder of this file and print one table of bars.

    python benchmarks/run.py [--quick] [--minutes N] [--json FILE]

Each benchmark takes --quick and --json and writes {"bars": [...], "conditions": {...}}. Files whose names begin with an
underscore hold what benchmarks share. With --quick everything ends within 15 minutes (--minutes): a benchmark gets
three times its equal share of the time that is left, and is ended after that. The table names those that were ended.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
QUICK_MINUTES = 15.0
BY_HAND = (Path(__file__).name, "scale_cores.py", "soak.py")
"""Scripts that are not run here: this one, one that needs many quiet cores, and one that takes hours (`make soak`)."""


def main() -> int:
    """0 when every benchmark ran and met its bars."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--minutes", type=float, help="limit for everything (default: 15 with --quick, else none)")
    parser.add_argument("--json", type=Path, help="write all results to this file")
    arguments = parser.parse_args()
    minutes = arguments.minutes or (QUICK_MINUTES if arguments.quick else None)
    end = math.inf if minutes is None else time.monotonic() + 60 * minutes
    results: dict[str, Any] = {}
    notes: dict[str, str] = {}
    scripts = [each for each in sorted(HERE.glob("*.py")) if each.name not in BY_HAND and each.name[0] != "_"]
    for number, script in enumerate(scripts):
        print(f"== {script.stem}", flush=True)
        share = (end - time.monotonic()) / (len(scripts) - number)
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "result.json"
            command = [sys.executable, str(script), "--json", str(out), *(["--quick"] if arguments.quick else [])]
            ended = run_limited(command, min(3 * share, end - time.monotonic()))
            if out.exists():
                results[script.stem] = json.loads(out.read_text())
            else:
                notes[script.stem] = ended
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")
    print_table(results, notes)
    met = all(bar["ok"] for result in results.values() for bar in result["bars"])
    return int(bool(notes) or not met)


def run_limited(command: list[str], seconds: float) -> str:
    """Run a benchmark. Return why it has no result, if it has none."""
    process = subprocess.Popen(command, start_new_session=True)
    try:
        return f"failed with exit code {process.wait(None if math.isinf(seconds) else max(seconds, 0))}"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return f"ended after {seconds:.0f} s: no time was left"
    except BaseException:
        os.killpg(process.pid, signal.SIGTERM)
        raise


def print_table(results: Mapping[str, Any], notes: Mapping[str, str]) -> None:
    """Print one line per bar, and one per benchmark without a result."""
    print(f"\n{'benchmark':24} {'bar':58} {'value':>12} {'limit':>10} {'unit':18} {'':6} machine")
    for name, result in results.items():
        around = result["conditions"].get("surroundings", {})
        noise = f"{around['other_work_cores']:.1f} cores busy" if around else ""
        for bar in result["bars"]:
            word = "ok" if bar["ok"] else "MISSED"
            values = f"{bar['value']:12,.3f} {bar['bar']:10,g} {bar['unit']:18} {word:6}"
            print(f"{name:24} {bar['name']:58} {values} {noise}")
        print(f"{name:24} took {result['conditions'].get('seconds', 0)} s")
    for name, note in notes.items():
        print(f"{name:24} {note}")
    missed = sum(not bar["ok"] for result in results.values() for bar in result["bars"])
    print(f"{len(results)} benchmarks ran, {len(notes)} have no result, {missed} bars missed")


if __name__ == "__main__":
    sys.exit(main())
