"""`-p tests.allowed_skips`: a test that is skipped for another reason than those listed here fails the run, as in CI.

CI installs what tests need (`.ci/run`). A skip that is not listed means that something could not be installed, or that
a new test needs something: install it there, or add the reason here.
"""

from __future__ import annotations

import re

import pytest

ALLOWED = {
    r"needs (an NVIDIA GPU|\d NVIDIA GPUs)|no NVIDIA GPU": "CI has no GPU; `make test-gpu` runs these",
    r"here it can be recorded": "the opposite of the line above",
    r"set CLEW_CHAOS=1": "minutes long: `make test-all`",
    r"takes long: make test-sites": "minutes long: `make test-all`",
    r"public sample is not at|public data not here|no public LArTPC data": "large files outside the repository",
    r"no Geant4 showers in": "a large file outside the repository",
    r"steps of this rule differ|does not support a step that alternates": "suites of `clew.testing`: a rule without it",
    r"can be mounted|mount a file system|only root can|networks? of (its|their) own": "a container without rights",
    r"a file system without attributes": "some file systems in memory",
    r"dask-awkward is not installed": "it needs an older dask than the lock has",
    r"no headers of ONNX Runtime": "a package of Debian 13, which a mirror may not have",
    r"pfnano.root is not here": "a file outside the repository",
    r"TensorFlow is( not)? installed": "600 MB; both cases cannot hold at once",
}
"""Reasons of skips, as patterns, and why they are allowed."""
_EXIT_CODE = 9
"""Not that of failed tests: these are tried again (`tools/run-tests`)."""
_unexpected: list[str] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        _note(report.nodeid, report.longrepr)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.skipped:  # a whole module
        _note(report.nodeid, report.longrepr)


def _note(test: str, skip: object) -> None:
    reason = str(skip[2]) if isinstance(skip, tuple) else str(skip)
    if not any(re.search(pattern, reason) for pattern in ALLOWED):
        _unexpected.append(f"{test}: {reason}")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if _unexpected and not hasattr(session.config, "workerinput"):
        print("\nSkipped, but not listed in tests/allowed_skips.py:", *_unexpected, sep="\n  ")
        session.exitstatus = _EXIT_CODE
