"""How the runs of a pack end: one that loses its lease does not stop the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clew import Dataset
from clew.jobs.lease import Lease
from clew.recipe import find
from clew.training.config import TrainConfig
from clew.training.packs import pack
from clew.training.packs.member import FINISHED, LOST, PackMember
from tests.training.packs.test_packs import BEND

pytestmark = pytest.mark.timeout(120)


def make_member(folder: Path, flat: Dataset, lease: Lease | None, **settings: Any) -> PackMember:
    recipe_class = find(BEND)
    recipe = recipe_class(recipe_class.Config.model_validate({"pause": 0.01}))
    common = {"dataset": str(flat.path), "batch_size": 10, "epochs": 2, "threads": 1, "order": 1}
    config = TrainConfig.model_validate({**common, **settings})
    return pack.load_member(pack.create_run(folder, recipe, config), recipe, config, lease)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"accumulate": 2}, {}], ids=["separate", "packed"])
def test_a_run_that_loses_its_lease_does_not_stop_the_others(
    settings: dict[str, Any], flat: Dataset, tmp_path: Path
) -> None:
    revoked = Lease(tmp_path / "never-granted")
    members = [
        make_member(tmp_path / "revoked", flat, revoked, **settings),
        make_member(tmp_path / "other", flat, None, **settings),
    ]
    ended: list[PackMember] = []
    pack.train_pack(members, ended.append, threads=1)
    assert [member.code for member in members] == [LOST, FINISHED]
    assert set(ended) == set(members)
    assert members[0].run.last("end") is None
    assert members[1].run.state == "finished"
