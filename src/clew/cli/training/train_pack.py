"""`clew train --pack FILE`: what a study starts to train many trials at once."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from clew.core.config import Document
from clew.core.files import write_text
from clew.errors import ClewError
from clew.jobs.lease import Lease

if TYPE_CHECKING:
    from clew.training.packs.member import PackMember


def run(file: Path) -> None:
    """Train the runs that a file names, each by the arguments of a `clew train` of its own, and tell how each ends."""
    from clew.training.packs.pack import train_pack

    folders: dict[Path, Path] = {}
    members = []
    for each in json.loads(file.read_text()):
        folder = Path(each["folder"])
        try:
            member = _load_member(each["arguments"])
        except ClewError as error:
            _end(folder, error.exit_code, f"clew: {error}")
            continue
        folders[member.run.path] = folder
        members.append(member)
    if members:
        train_pack(members, lambda member: _end(folders[member.run.path], member.code or 0, member.message))


def _end(folder: Path, code: int, message: str) -> None:
    write_text(folder / "log.txt", f"{message}\n" if message else "")
    write_text(folder / "exit", str(code))


def _load_member(words: Sequence[str]) -> PackMember:
    from clew import settings
    from clew.runs import Run
    from clew.training.packs import pack
    from clew.training.run_recipe import recipe_of_run

    options = dict(itertools.pairwise(words))
    lease = Lease(Path(options["--lease"])) if "--lease" in options else None
    if "--resume" in options:
        run = Run.open(options["--resume"])
        return pack.load_member(run, *recipe_of_run(run), lease)
    given = settings.settings_from_document(Document(json.loads(Path(words[1]).read_text()), source=words[1]))
    return pack.load_member(
        pack.create_run(Path(options["--output"]), given.recipe, given.train), given.recipe, given.train, lease
    )
