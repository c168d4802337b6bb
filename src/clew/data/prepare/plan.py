"""What a preparation is about to do, known before any event is read."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from clew import storage
from clew.core.config import Document, to_data, validate
from clew.data.prepare.config import PrepareConfig
from clew.data.prepare.content_keys import Parts, differences, key_of, stage_parts
from clew.data.prepare.inputs import Beside, Hashes, find
from clew.data.prepare.stage_cache import Cache
from clew.data.prepare.worker import Unit, located
from clew.data.readers import Pieces, Reader
from clew.data.transforms import Fitted, Transform, fit
from clew.errors import DataError
from clew.recipe import Recipe, resolve


class Plan:
    """What is to be made from what; knows the dataset's key before any event is read."""

    def __init__(
        self,
        recipe: str | Recipe | type[Recipe],
        config: PrepareConfig | None,
        settings: dict[str, Any],
        *,
        verify: bool = False,
    ) -> None:
        self.recipe = resolve(recipe)
        below = to_data(config) if config else self.recipe.defaults.get("prepare", {})
        self.config = validate(PrepareConfig, Document({**below, **settings}, source="clew.prepare"))
        self.cache = Cache(Path(self.config.cache) if self.config.cache else storage.cache_folder())
        hashes = Hashes(self.cache, trust=not verify)
        self.sources = find(self.config.input, hashes, self._beside)
        self.readers = self._readers()
        self.identity = self._identity()
        self.key = key_of(self.identity)

    def _identity(self) -> Parts:
        """Everything the dataset depends on."""
        config, inputs = self.config, [source.sha256 for source in self.sources]
        if isinstance(config.input, dict):
            chosen: Parts = {"split": {source.sha256: source.split for source in self.sources}}
        else:
            chosen = {"split": config.shares, "split_by": config.split_by or "event", "seed": config.seed}
        chosen["shard_mb"] = config.shard_mb
        return {"inputs": inputs, "dataset": chosen, **self.parts(self.recipe.transforms())}

    def parts(self, transforms: Sequence[Transform]) -> dict[str, Parts]:
        """What each stage depends on."""
        return stage_parts(self.recipe, transforms, self.readers)

    def units(self) -> list[Unit]:
        """The pieces of all files."""
        found = []
        for source in self.sources:
            try:
                pieces = self.recipe.read(source.location)
                if isinstance(pieces, Pieces):
                    names = [f"{piece.start}-{piece.stop}" for piece in pieces.plan]
                elif isinstance(pieces, Sequence):
                    names = [f"piece {number}" for number in range(len(pieces))]
                else:
                    found.append(Unit(source, None, source.location, source.bytes))
                    continue
                share = source.bytes // max(len(names), 1)
                if len(names) == 1:
                    found.append(Unit(source, 0, source.location, share))
                else:
                    found += [Unit(source, i, f"{source.location} ({name})", share) for i, name in enumerate(names)]
            except DataError as error:
                raise DataError(located(error, source.location)) from error
        return found

    def fitted_before(self) -> list[Transform]:
        """The transforms, with the numbers they were last fitted to where nothing has changed since."""
        saved = self.cache.note(f"fit-{self._fit_key()}")
        asked = list(self.recipe.transforms())
        return [type(t).model_validate(s) for t, s in zip(asked, saved, strict=True)] if saved else asked

    def fitted(self, measured: Callable[[Fitted, Sequence[Transform]], list[Any]]) -> list[Transform]:
        """The transforms with their numbers filled in, from the cache or from a pass over the events."""
        done = self.fitted_before()
        if any(isinstance(t, Fitted) and t.needs_fit for t in done):
            done = fit(done, lambda: (), measured)
            self.cache.take_note(f"fit-{self._fit_key()}", [to_data(transform) for transform in done])
        return done

    def reasons(self, parts: dict[str, Parts]) -> dict[str, list[str]]:
        """Against the last preparation into the same place: what changed, stage by stage."""
        before = self.cache.note(self._note())
        if before is None:
            return {stage: ["nothing was prepared into this place before"] for stage in ("inputs", *parts)}
        old, new = set(before["inputs"]), {source.sha256: source.location for source in self.sources}
        gone = len(old - new.keys())
        changed = [
            f"{storage.mask_secrets(location)} is new or changed"
            for digest, location in new.items()
            if digest not in old
        ]
        changed += [f"{gone} inputs of last time are gone or changed"] if gone else []
        split = self._changes(before["dataset"])
        return {"inputs": changed, "dataset": split, **{s: differences(before[s], parts[s]) for s in parts}}

    def _changes(self, before: Parts) -> list[str]:
        """Of how events are split and stored; files by their names, those that are gone were told of already."""
        lines = differences(before, self.identity["dataset"])
        for source in self.sources:
            lines = [line.replace(source.sha256, source.location) for line in lines]
        return [line for line in lines if not re.match(r"split\.[0-9a-f]{64}:", line)]

    def remember(self, parts: dict[str, Parts]) -> None:
        """For the next `explain`."""
        self.cache.take_note(self._note(), {**self.identity, **parts})

    def _fit_key(self) -> str:
        return key_of([self.identity["inputs"], self.identity["read"], self.identity["transforms"]])

    def _note(self) -> str:
        return f"last-{key_of([self.recipe.location, str(Path(self.config.output).absolute())])}"

    def _beside(self, location: str) -> Beside:
        pieces = self.recipe.read(location)
        if not isinstance(pieces, Pieces):
            return Beside()
        return Beside(pieces.reader.companions(location), pieces.reader.beside(location))

    def _readers(self) -> list[Reader]:
        """The readers in use, each once."""
        found = [self.recipe.read(source.location) for source in self.sources]
        used = {pieces.reader.model_dump_json(): pieces.reader for pieces in found if isinstance(pieces, Pieces)}
        return list(used.values())
