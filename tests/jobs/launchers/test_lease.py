"""Work handed out for a while."""

from __future__ import annotations

from pathlib import Path

import pytest

from clew.errors import RunError
from clew.jobs.lease import Lease


def test_a_holder_gives_signs_of_life_and_hears(tmp_path: Path) -> None:
    given, held = Lease(tmp_path / "lease"), Lease(tmp_path / "lease")
    given.grant()
    before = given.last_heartbeat()
    held.beat(now=True)
    assert (held.lost, held.stop_reason) == (False, "")
    assert before is not None and (given.last_heartbeat() or 0) > before
    given.request_stop("pruned: 3")
    held.beat(now=True)
    assert held.stop_reason == "pruned: 3"


def test_one_that_was_taken_back_is_lost(tmp_path: Path) -> None:
    given, held = Lease(tmp_path / "lease"), Lease(tmp_path / "lease")
    given.grant()
    given.revoke()
    held.beat(now=True)
    assert held.lost and given.last_heartbeat() is None
    given.revoke()


def test_it_is_handed_out_once(tmp_path: Path) -> None:
    Lease(tmp_path / "lease").grant()
    with pytest.raises(RunError, match="assigned before"):
        Lease(tmp_path / "lease").grant()
