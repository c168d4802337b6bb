"""The plan of a preparation: what is known before any event is read."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from clew import storage
from clew.core.config import Document, to_data, validate
from clew.data.prepare.config import PrepareConfig
from clew.data.prepare.content_keys import Parts, differences, key_of, stage_parts
from clew.data.prepare.inputs import FileHashes, find_sources, related_files, warn_about_input
from clew.data.prepare.same_items import Count, decide_items
from clew.data.prepare.stage_cache import StageCache
from clew.data.prepare.stages import piece_names
from clew.data.prepare.worker import InputPiece, with_location
from clew.data.readers import FilePieces, Reader
from clew.data.readers.items import ItemGroups
from clew.data.transforms import FittedTransform, Transform, fit
from clew.errors import DataError
from clew.recipe import Recipe, resolve


class PreparePlan:
    """The inputs, settings and keys of a preparation. The key of the dataset is known before any event is read.

    Args:
        recipe: Name of a recipe, path of its file, class, or object.
        config: The settings. None uses those of the recipe.
        settings: Settings that replace those of `config`.
        verify: Whether all inputs are read again to compute their hashes.
    """

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
        self.cache = StageCache(Path(self.config.cache) if self.config.cache else storage.cache_folder())
        hashes = FileHashes(self.cache, trust=not verify)
        self.sources = find_sources(self.config.input, hashes, partial(related_files, self.recipe))
        self.readers = self._readers()
        self.items: ItemGroups | None = None
        self.identity = self._identity()
        self.key = key_of(self.identity)

    def _identity(self) -> Parts:
        """Return everything the dataset depends on."""
        config, inputs = self.config, [source.sha256 for source in self.sources]
        if isinstance(config.input, dict):
            chosen: Parts = {"split": {source.sha256: source.split for source in self.sources}}
        else:
            chosen = {"split": config.shares, "split_by": config.split_by or "event", "seed": config.seed}
        chosen["shard_mb"] = config.shard_mb
        return {"inputs": inputs, "dataset": chosen, **self.parts(self.recipe.transforms())}

    def parts(self, transforms: Sequence[Transform]) -> dict[str, Parts]:
        """Return what each stage depends on."""
        parts = stage_parts(self.recipe, transforms, self.readers)
        return parts if not self.items else {**parts, "read": {**parts["read"], "items": self.items}}

    def decide_items(self, units: Sequence[InputPiece], count: Count | None = None) -> None:
        """Decide which columns are the same items in all files. The identity of the dataset does not depend on it:
        content and settings of the inputs decide.

        Args:
            units: The pieces of all files.
            count: Counts the items of pieces. None uses the cache only.
        """
        self.items = decide_items(self.recipe, units, self.cache, self.identity["read"], count)

    def units(self) -> list[InputPiece]:
        """Return the pieces of all files. Warns about what they lack."""
        pieces_of_all = []
        for source in self.sources:
            try:
                pieces = self.recipe.read(source.location)
                if not isinstance(pieces, Sequence):
                    pieces_of_all.append(InputPiece(source, None, source.location, source.bytes))
                    continue
                names = piece_names(pieces, source.location)
                share = source.bytes // max(len(names), 1)
                pieces_of_all += [InputPiece(source, place, name, share) for place, name in enumerate(names)]
            except DataError as error:
                raise DataError(with_location(error, source.location)) from error
        warn_about_input(self.recipe, self.sources[0].location)
        return pieces_of_all

    def fitted_before(self) -> list[Transform]:
        """Return the transforms, with their last fitted numbers if nothing has changed since."""
        saved = self.cache.note(f"fit-{self._fit_key()}")
        transforms = list(self.recipe.transforms())
        return [type(t).model_validate(s) for t, s in zip(transforms, saved, strict=True)] if saved else transforms

    def fitted(self, measured: Callable[[FittedTransform, Sequence[Transform]], list[Any]]) -> list[Transform]:
        """Return the transforms with their numbers set, from the cache or from a pass over the events."""
        transforms = self.fitted_before()
        if any(isinstance(t, FittedTransform) and t.needs_fit for t in transforms):
            transforms = fit(transforms, lambda: (), measured)
            self.cache.take_note(f"fit-{self._fit_key()}", [to_data(transform) for transform in transforms])
        return transforms

    def reasons(self, parts: dict[str, Parts]) -> dict[str, list[str]]:
        """Return what changed since the last preparation to the same output, by stage."""
        before = self.cache.note(self._note())
        if before is None:
            return {stage: ["nothing was prepared to this output before"] for stage in ("inputs", *parts)}
        old, new = set(before["inputs"]), {source.sha256: source.location for source in self.sources}
        missing = len(old - new.keys())
        changed = [
            f"{storage.mask_secrets(location)} is new or changed"
            for digest, location in new.items()
            if digest not in old
        ]
        changed += [f"{missing} inputs of the last preparation are missing or changed"] if missing else []
        split = self._changes(before["dataset"])
        return {"inputs": changed, "dataset": split, **{s: differences(before[s], parts[s]) for s in parts}}

    def _changes(self, before: Parts) -> list[str]:
        """Return changes of how events are split and stored. Files are named; files that are missing are already
        reported."""
        lines = differences(before, self.identity["dataset"])
        for source in self.sources:
            lines = [line.replace(source.sha256, source.location) for line in lines]
        return [line for line in lines if not re.match(r"split\.[0-9a-f]{64}:", line)]

    def remember(self, parts: dict[str, Parts]) -> None:
        """Store the keys for the next `explain`."""
        self.cache.take_note(self._note(), {**self.identity, **parts})

    def _fit_key(self) -> str:
        return key_of([self.identity["inputs"], self.identity["read"], self.identity["transforms"]])

    def _note(self) -> str:
        return f"last-{key_of([self.recipe.location, str(Path(self.config.output).absolute())])}"

    def _readers(self) -> list[Reader]:
        """Return the readers in use, each once."""
        reads = [self.recipe.read(source.location) for source in self.sources]
        used = {pieces.reader.model_dump_json(): pieces.reader for pieces in reads if isinstance(pieces, FilePieces)}
        return list(used.values())
