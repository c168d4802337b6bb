"""Run every benchmark in the folder of this file and print one table of bars.

    python benchmarks/run.py [--quick] [--json FILE]

Each benchmark takes the same two options and writes {"bars": [...], "conditions": {...}}. Files whose names begin with
an underscore hold what benchmarks share.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
BY_HAND = (Path(__file__).name, "scale_cores.py", "soak.py")
"""Scripts that are not run here: this one, one that needs many quiet cores, and one that takes hours (`make soak`)."""


def main() -> int:
    """0 when every benchmark ran and met its bars."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--json", type=Path, help="write all results to this file")
    arguments = parser.parse_args()
    results, failed = {}, []
    for script in sorted(HERE.glob("*.py")):
        if script.name.startswith("_") or script.name in BY_HAND:
            continue
        print(f"== {script.stem}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "result.json"
            command = [sys.executable, str(script), "--json", str(out), *(["--quick"] if arguments.quick else [])]
            subprocess.run(command, check=False)
            if out.exists():
                results[script.stem] = json.loads(out.read_text())
            else:
                failed.append(script.stem)
    missed = [f"{name}: {b['name']}" for name, r in results.items() for b in r["bars"] if not b["ok"]]
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")
    print(f"\n{len(results)} benchmarks ran, {len(failed)} failed {failed}, bars missed: {missed or 'none'}")
    return int(bool(failed or missed))


if __name__ == "__main__":
    sys.exit(main())
