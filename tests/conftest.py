"""Real data for the whole session: a few hundred generated events, their dataset, and a small run trained on it.

All three are shared: a test that changes files takes a copy (`dataset_copy`, `run_copy`).
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import clew
from clew import Dataset, Run
from clew.recipes.tracking import Tracking
from clew.settings import load_settings
from tests import warm_processes
from tests.chromium import browser

__all__ = ["browser"]  # one for all tests of a process: a second one cannot be started

EVENTS = 300

# no test asserts time, and any example may take long on a busy machine
settings.register_profile("clew", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("clew")

ROOT = Path(__file__).parent.parent
FILES_OF_TOOLS = {
    ".coverage",
    ".hypothesis",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
    ".venv-condor",
    ".venv-rucio",
}


_files: set[str] = set()
"""Names in the root of the project before the tests."""


def pytest_sessionstart(session: pytest.Session) -> None:
    _files.update(path.name for path in ROOT.iterdir())


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail when the tests left files in the root of the project: checks that run later would read them."""
    left = {path.name for path in ROOT.iterdir()} - FILES_OF_TOOLS - _files
    if left and not hasattr(session.config, "workerinput"):
        print(f"\nA test left files in the root of the project: {', '.join(sorted(left))}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


# a process started in the background of a shell script ignores Ctrl-C, and so do its children
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "exec: start every process of the test as usual, not from a warm server")
    config.addinivalue_line("markers", "long: left out by make test; CI and make test-long run it")
    config.addinivalue_line("markers", "slow: left out by make test-quick; seconds within the test process")
    config.addinivalue_line("markers", "gpu(devices=1): needs this many NVIDIA GPUs; make test-gpu runs only these")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # every process would compile clew anew


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests that need more GPUs than there are."""
    devices = {item: [mark.kwargs.get("devices", 1) for mark in item.iter_markers("gpu")] for item in items}
    if not any(devices.values()):
        return
    import torch

    found = torch.cuda.device_count()
    for item, marks in devices.items():
        needed = max(marks, default=0)
        if found < needed:
            what = "an NVIDIA GPU" if needed == 1 else f"{needed} NVIDIA GPUs"
            item.add_marker(pytest.mark.skip(reason=f"needs {what}; torch finds {found}"))


def pytest_collection_finish() -> None:
    gc.freeze()  # every collection would go through the modules and tests that stay to the end
    warm_processes.install()  # not before: modules of tests import libraries that set variables


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Fork the processes of a test, and those of fixtures that it is the first to need, unless it is marked."""
    chosen = os.environ.get("CLEW_TEST_FORK", "all") == "all" and not item.nodeid.startswith("tests/sites/")
    with warm_processes.forking(on=chosen and item.get_closest_marker("exec") is None):
        return (yield)


@pytest.fixture(autouse=True)
def _environment() -> Iterator[None]:
    """A test leaves the environment as it was: libraries set variables that would be passed to all later processes."""
    before = dict(os.environ)
    yield
    changed = {name for name, value in os.environ.items() if before.get(name) != value} - {"PYTEST_CURRENT_TEST"}
    for name in changed:
        del os.environ[name]
    os.environ.update({name: value for name, value in before.items() if name not in os.environ})


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The cache is a folder of this session, never the user's; no run reports to the user's server."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLEW_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("CLEW_CONFIG", str(tmp_path_factory.mktemp("config")))
        patch.delenv("CLEW_SERVER", raising=False)
        patch.delenv("CLEW_TOKEN", raising=False)
        yield


@pytest.fixture(scope="session")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two text files of synthetic tracking events, numbered 0 to 299."""
    folder = tmp_path_factory.mktemp("events")
    assert sum(count for _, count in Tracking().generate(EVENTS, 1, folder)) == EVENTS
    return folder


@pytest.fixture(scope="session")
def dataset(events: Path, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Those events as the tracking recipe prepares them: train, val and test."""
    output = tmp_path_factory.mktemp("prepared") / "dataset"
    return clew.prepare("tracking", input=[str(events)], output=str(output), workers=1)


@pytest.fixture(scope="session")
def run(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run of one process: 16 hidden units, 2 epochs, evaluated on the split `test`."""
    output = tmp_path_factory.mktemp("runs") / "tracking-001"
    small = load_settings("tracking", ["model.hidden=16", "train.epochs=2"])
    trained = clew.train(small.recipe, dataset, config=small.train, output=output)
    clew.evaluate(trained)
    return trained


@pytest.fixture
def dataset_copy(dataset: Dataset, tmp_path: Path) -> Dataset:
    """A copy of the dataset that a test may damage."""
    return Dataset(shutil.copytree(dataset.path, tmp_path / "dataset"))


@pytest.fixture
def run_copy(run: Run, tmp_path: Path) -> Run:
    """A copy of the run that a test may damage or evaluate again."""
    return Run.open(shutil.copytree(run.path, tmp_path / "run"))
