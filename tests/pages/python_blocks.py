"""The blocks of Python of the pages: what they presume, and the tests that run the others."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Code:
    """How the blocks of Python of a page are run: one after the other, as one script.

    Attributes:
        presumes: what is in the working folder: names of functions in `scenes.py`.
        before: lines that are run first: names that the page presumes.
        replaced: text of the blocks and what is run in its place.
        apart: numbers of blocks that are run as scripts of their own.
    """

    presumes: tuple[str, ...] = ()
    before: str = "import clew"
    replaced: tuple[tuple[str, str], ...] = ()
    apart: tuple[int, ...] = ()


MODEL = """
import clew
import numpy as np
from torch import nn

X = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)
y = (X.sum(axis=1) > 0).astype(np.int64)
model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
"""

RUN_HERE: dict[str, Code] = {
    "docs/howto/export.md": Code(presumes=("keras_run",)),
    "docs/howto/models.md": Code(presumes=("keras_files",), before=MODEL, apart=(1,)),
    "docs/howto/notebooks.md": Code(
        before="from torch import nn\nmodel = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2))",
        replaced=(("recipe=model)", "recipe=model, epochs=6)"), ("runs/model-001", "runs/sequential-001")),
    ),
    "docs/howto/predict.md": Code(
        presumes=("events", "dataset", "two_runs"),
        before=f"{MODEL}\nrun = clew.train(model, (X, y), epochs=1, output='runs/plain')",
        replaced=(("workers=4", "workers=2"),),
    ),
    "docs/howto/runs.md": Code(presumes=("runs_a_and_b",)),
    "docs/howto/sites.md": Code(),
    "docs/howto/train.md": Code(presumes=("net",), before=MODEL, replaced=(("workers=4", "workers=2"),)),
    "docs/howto/trees.md": Code(presumes=("root_files",), replaced=(("events.h5", "jets1.root"),)),
    "docs/howto/tune.md": Code(),
}

COMING_FROM = "tests/test_docs_coming_from.py::test_"
OWN_CODE = "tests/test_docs_own_code.py::test_"
BY_OTHER_TESTS: dict[str, str] = {
    "README.md": "tests/test_docs.py::test_the_five_lines_of_the_readme_work",
    "docs/howto/client.md": "tests/pages/test_python_blocks.py::test_jobs_of_the_page_on_the_client_run",
    "docs/howto/columnar.md": "tests/inference/test_columnar.py",
    "docs/howto/export-cpp.md": f"{OWN_CODE}the_program_prints_the_numbers_of_python",
    "docs/howto/from-determined.md": f"{COMING_FROM}determined",
    "docs/howto/from-itwinai.md": f"{COMING_FROM}itwinai",
    "docs/howto/from-lightning.md": "tests/models/lightning/test_page.py::test_every_command_runs",
    "docs/howto/from-optuna.md": f"{COMING_FROM}optuna",
    "docs/howto/from-ray-tune.md": f"{COMING_FROM}ray_tune",
    "docs/howto/from-weaver.md": "tests/models/weaver/test_conversion.py::test_the_commands_of_the_page_run",
    "docs/howto/jobs.md": "tests/jobs/agent/test_docs_own_code.py::test_the_script_of_the_page_reports_to_the_server",
    "docs/howto/own-metric.md": f"{OWN_CODE}the_metric_decides_about_the_best_weights",
    "docs/howto/own-reader.md": f"{OWN_CODE}the_reader_feeds_a_training",
    "docs/howto/own-recipe.md": f"{OWN_CODE}the_recipe_finds_the_z_boson",
    "docs/howto/testing.md": "tests/testing/test_docs.py",
    "docs/reference/formats.md": "tests/test_docs_formats.py",
    "docs/reference/recipes/jets.md": "tests/recipes/jets/test_docs.py::test_the_page_s_commands_work",
    "docs/start/ten-minutes.md": "tests/test_docs_start.py::test_ten_minutes_run",
}
"""The test that runs the blocks of a page."""
