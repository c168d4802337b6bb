"""A seeded part of the storms, about two minutes. The long one: `make chaos`."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.chaos.__main__ import run_reference
from tests.chaos.faults import Kill
from tests.chaos.scenarios import Asynchronous, Prepare, Scenario, Service, Study, Train, make_inputs
from tests.chaos.storm import run_storm, small_disk

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="a file system of its own is mounted, which only root can do"),
]
FAULTS: dict[type[Scenario], tuple[str, ...]] = {
    Prepare: ("full disk",),
    Train: ("flipped byte",),
    Asynchronous: (),
    Study: (),
    Service: (),
}
"""By scenario: what happens to it besides kill -9."""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chaos")
    (folder / "probe").mkdir()
    probe = subprocess.run(["mount", "-t", "tmpfs", "probe", str(folder / "probe")], check=False, capture_output=True)
    if probe.returncode:
        pytest.skip("this machine lets nobody mount a file system")
    subprocess.run(["umount", str(folder / "probe")], check=True)
    make_inputs(folder)
    return folder


@pytest.mark.long
@pytest.mark.parametrize("kind", FAULTS, ids=lambda kind: kind.name)
def test_a_storm_loses_nothing(kind: type[Scenario], inputs: Path) -> None:
    seconds, expected = run_reference(kind, inputs)
    faults = [fault for fault in kind(inputs, inputs).faults() if fault.name in FAULTS[kind]]
    kill = Kill(whole=kind in (Prepare, Train))  # the others have processes that must survive each other
    for fault in (kill, *faults):
        with small_disk(inputs / "disk", kind.megabytes) as disk:
            outcome = run_storm(kind(disk, inputs), fault, 1, seconds=seconds, expected=expected)
        assert outcome.wrong == [], outcome
