"""The private entry point of a training on the grid: `python3 -m clew.cli.training.panda_job RECIPE FILES SETTING...`.

`clew train --on SITE` writes this command into a PanDA task. FILES are the job's input files, separated by commas.
"""

from __future__ import annotations

import sys
from pathlib import Path

from clew.cli.main import report_errors
from clew.cli.options import bold, console


def run(recipe: str, files: str, settings: list[str]) -> None:
    """Prepare the files and train on them in the working folder."""
    from clew.settings import load_settings
    from clew.tuning import panda

    trained = panda.train_on_grid(load_settings(recipe, settings), files.split(",") if files else [], folder=Path.cwd())
    console.print(f"{bold(trained.path)} finished; model.safetensors and userJobMetadata.json are next to it")


if __name__ == "__main__":
    report_errors(lambda: run(sys.argv[1], sys.argv[2], sys.argv[3:]))
