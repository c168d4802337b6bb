"""What a pack's job does: it trains several runs in one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from clew.core.config import Document
from clew.core.files import write_text
from clew.errors import ClewError
from clew.jobs.lease import Lease
from clew.jobs.supervisor import JobEnd, log_file, write_end
from clew.jobs.task import PackTask, TrainTask

if TYPE_CHECKING:
    from clew.training.packs.member import PackMember


def run(task: PackTask, index: int | None = None) -> None:
    """Train the members of a pack, and record how each ends."""
    from clew.training.packs.pack import train_pack

    folders: dict[Path, Path] = {}
    members = []
    for each in task.members:
        folder = Path(each.folder)
        try:
            member = _member(each.task)
        except ClewError as error:
            _record_end(folder, error.exit_code, f"clew: {error}")
            continue
        folders[member.run.path] = folder
        members.append(member)
    if members:
        train_pack(members, lambda member: _record_end(folders[member.run.path], member.code or 0, member.message))


def preload() -> None:
    """Import what packs need."""
    import clew.settings
    import clew.training.packs.pack
    import clew.training.run_recipe  # noqa: F401


def _record_end(folder: Path, code: int, message: str) -> None:
    write_text(log_file(folder), f"{message}\n" if message else "")
    write_end(folder, JobEnd(code))


def _member(task: TrainTask) -> PackMember:
    from clew import settings
    from clew.data.dataset import Dataset
    from clew.runs import Run
    from clew.training.chosen_loss import with_chosen_loss
    from clew.training.packs import pack
    from clew.training.run_recipe import recipe_of_run

    lease = None if task.lease is None else Lease(Path(task.lease))
    if task.resume is not None:
        run = Run.open(task.resume)
        return pack.load_member(run, *recipe_of_run(run), lease)
    file = Path(task.recipe or "")
    loaded = settings.settings_from_document(Document(json.loads(file.read_text()), source=str(file)))
    recipe, _ = with_chosen_loss(loaded.recipe, Dataset(loaded.train.dataset))
    run = pack.create_run(Path(task.output or ""), recipe, loaded.train)
    return pack.load_member(run, recipe, loaded.train, lease)
