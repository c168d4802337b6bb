"""Work assigned for a limited time."""

from __future__ import annotations

from pathlib import Path

import pytest

from clew.errors import RunError
from clew.jobs.lease import Lease


def test_a_holder_gives_signs_of_life_and_hears(tmp_path: Path) -> None:
    granted, held = Lease(tmp_path / "lease"), Lease(tmp_path / "lease")
    granted.grant()
    before = granted.last_heartbeat()
    held.beat(now=True)
    assert (held.lost, held.stop_reason) == (False, "")
    assert before is not None and (granted.last_heartbeat() or 0) > before
    granted.request_stop("pruned: 3")
    held.beat(now=True)
    assert held.stop_reason == "pruned: 3"


def test_one_that_was_taken_back_is_lost(tmp_path: Path) -> None:
    granted, held = Lease(tmp_path / "lease"), Lease(tmp_path / "lease")
    granted.grant()
    granted.revoke()
    held.beat(now=True)
    assert held.lost and granted.last_heartbeat() is None
    granted.revoke()


def test_it_is_granted_once(tmp_path: Path) -> None:
    Lease(tmp_path / "lease").grant()
    with pytest.raises(RunError, match="assigned before"):
        Lease(tmp_path / "lease").grant()
