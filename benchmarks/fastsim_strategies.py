"""The GAN of `fastsim` under several strategies: speed on one and two workers, and the time until a target.

It generates parametrised showers, prepares them, and runs `clew bench scale` and `clew bench strategies` (which needs
root and iproute2) with a small GAN:

    python benchmarks/fastsim_strategies.py --showers 512 --epochs 2 --output /tmp/fastsim
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

CLEW = Path(sys.executable).parent / "clew"
STRATEGIES = "allreduce,downpour,easgd"


def run(*words: str, folder: Path) -> None:
    """Run clew, and print its command and its output."""
    print("$ clew", *words, flush=True)
    subprocess.run([str(CLEW), *words], cwd=folder, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--showers", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--channels", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--output", type=Path, default=Path("fastsim-strategies"))
    options = parser.parse_args()
    folder: Path = options.output
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gan.yaml").write_text(
        "recipe: fastsim\n"
        f"train: {{dataset: dataset, epochs: {options.epochs}, threads: 1}}\n"
        f"model: {{channels: {options.channels}}}\n"
    )
    run(
        "data",
        "generate",
        "fastsim",
        "--events",
        str(options.showers),
        "--seed",
        "1",
        "--output",
        "events",
        folder=folder,
    )
    run("prepare", "fastsim", "--input", "events", "--output", "dataset", folder=folder)
    repeat = ("--repeat", str(options.repeat))
    run("bench", "scale", "gan.yaml", "--workers", "1,2", "--strategy", STRATEGIES, *repeat, folder=folder)
    limits = ("--bandwidth", "unlimited", "--epochs", str(options.epochs), "--limit", "5m")
    run(
        "bench",
        "strategies",
        "gan.yaml",
        "--strategy",
        STRATEGIES,
        *limits,
        *repeat,
        "--output",
        "study",
        folder=folder,
    )


if __name__ == "__main__":
    main()
