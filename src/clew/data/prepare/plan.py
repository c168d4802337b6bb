"""The plan of a preparation: what is known before any event is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from clew import storage
from clew.core.config import Document, to_data, validate
from clew.data.prepare.chain import StageChain, check_keep, stage_chain
from clew.data.prepare.chain_run import InputPiece, with_location
from clew.data.prepare.config import PrepareConfig
from clew.data.prepare.content_keys import Parts, key_of, stage_parts, transform_parts, transform_settings
from clew.data.prepare.inputs import FileHashes, find_sources, related_files, warn_about_input
from clew.data.prepare.same_items import Count, decide_items
from clew.data.prepare.stage_cache import StageCache
from clew.data.prepare.stages import piece_names
from clew.data.readers import FilePieces, Reader
from clew.data.readers.items import ItemGroups
from clew.data.transforms import FittedTransform, Transform, fit
from clew.errors import DataError
from clew.recipe import Recipe, resolve


def prepare_settings(
    recipe: str | Recipe | type[Recipe], config: PrepareConfig | None, settings: dict[str, Any]
) -> tuple[Recipe, PrepareConfig]:
    """Return the recipe and all settings of a preparation.

    Args:
        recipe: Name of a recipe, path of its file, class, or object.
        config: The settings. None uses those of the recipe.
        settings: Settings that replace those of `config`.
    """
    resolved = resolve(recipe)
    below = to_data(config) if config else resolved.defaults.get("prepare", {})
    return resolved, validate(PrepareConfig, Document({**below, **settings}, source="clew.prepare"))


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
        self.recipe, self.config = prepare_settings(recipe, config, settings)
        self.cache = StageCache(Path(self.config.cache) if self.config.cache else storage.cache_folder())
        hashes = FileHashes(self.cache, trust=not verify)
        self.sources = find_sources(self.config.input, hashes, partial(related_files, self.recipe))
        self.readers = self._readers()
        check_keep(self.config, self.recipe.transforms())
        self.items: ItemGroups | None = None
        self._parts_of_kinds: dict[type[Transform], Parts] = {}
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
        parts = stage_parts(self.recipe, self.recipe.transforms(), self.readers)
        return {"inputs": inputs, "dataset": chosen, **parts}

    def chain(self, transforms: Sequence[Transform]) -> StageChain:
        """Return the stages of the preparation with these transforms."""
        read = self.identity["read"] if not self.items else {**self.identity["read"], "items": self.items}
        each = [(transform, self._transform_parts(transform)) for transform in transforms]
        return stage_chain(read, each, self.identity["prepare"], self.config)

    def _transform_parts(self, transform: Transform) -> Parts:
        """Return what a transform depends on. Its code is hashed once."""
        kind = type(transform)
        if kind not in self._parts_of_kinds:
            self._parts_of_kinds[kind] = transform_parts(self.recipe, transform)
        return {**self._parts_of_kinds[kind], "settings": transform_settings(transform)}

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
        """Return the transforms, with the fitted numbers that the cache remembers.

        The numbers of a transform depend on the inputs, on reading, and on the transforms up to it.
        """
        transforms: list[Transform] = []
        for transform, note in zip(self.recipe.transforms(), self._fit_notes(), strict=True):
            numbers = self.cache.note(note) if _needs_fit(transform) else None
            transforms.append(type(transform).model_validate(numbers) if numbers else transform)
        return transforms

    def fitted(self, measured: Callable[[FittedTransform, Sequence[Transform]], list[Any]]) -> list[Transform]:
        """Return the transforms with their numbers set, from the cache or from passes over the events."""
        before = self.fitted_before()
        transforms = fit(before, lambda: (), measured)
        for old, new, note in zip(before, transforms, self._fit_notes(), strict=True):
            if _needs_fit(old):
                self.cache.take_note(note, to_data(new))
        return transforms

    def _fit_notes(self) -> list[str]:
        """Return the name of the note with the fitted numbers of each transform."""
        notes, key = [], key_of([self.identity["inputs"], self.identity["read"]])
        for transform in self.recipe.transforms():
            key = key_of([key, self._transform_parts(transform)])
            notes.append(f"fitted-{key}")
        return notes

    def last(self) -> Any:
        """Return what `remember` stored after the last preparation to the same output, or None."""
        return self.cache.note(self._note())

    def remember(self, stages: list[Parts]) -> None:
        """Store what the next `explain` compares with.

        Args:
            stages: Name, code and settings, and costs of every stage.
        """
        names = ("inputs", "dataset")
        self.cache.take_note(self._note(), {**{name: self.identity[name] for name in names}, "stages": stages})

    def _note(self) -> str:
        return f"chain-{key_of([self.recipe.location, str(Path(self.config.output).absolute())])}"

    def _readers(self) -> list[Reader]:
        """Return the readers in use, each once."""
        reads = [self.recipe.read(source.location) for source in self.sources]
        used = {pieces.reader.model_dump_json(): pieces.reader for pieces in reads if isinstance(pieces, FilePieces)}
        return list(used.values())


def _needs_fit(transform: Transform) -> bool:
    return isinstance(transform, FittedTransform) and transform.needs_fit
