"""Which columns of the inputs of a dataset describe the same items: one decision for all files and all pieces."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import groupby

from clew.data.prepare.chain_run import InputPiece
from clew.data.prepare.content_keys import Parts, key_of
from clew.data.prepare.inputs import InputSource
from clew.data.prepare.stage_cache import StageCache
from clew.data.readers import DataWarning, FilePieces
from clew.data.readers.items import ItemCounts, ItemGroups
from clew.recipe import Recipe

Count = Callable[[Sequence[InputPiece]], list[ItemCounts]]


def decide_items(
    recipe: Recipe, units: Sequence[InputPiece], cache: StageCache, read_parts: Parts, count: Count | None
) -> ItemGroups | None:
    """Return the columns that are the same items in all files. The counts of a file are remembered in the cache.

    Args:
        recipe: The recipe.
        units: The pieces of all files.
        cache: The stage cache.
        read_parts: What the read stage depends on.
        count: Counts the items of pieces. None uses what the cache remembers, and no data is read.

    Returns:
        The groups; None if the recipe reads the files in its own way, or if the cache does not have all counts.
    """
    pieces = [unit for unit in units if _is_compared(recipe, unit)]
    if len(pieces) < len(units) or not pieces:
        return None
    by_source = {source: list(group) for source, group in groupby(pieces, key=lambda unit: unit.source)}
    notes = {source: _note(source, read_parts) for source in by_source}
    counts = {source: _remembered(cache, name) for source, name in notes.items()}
    missing = [source for source, counted in counts.items() if counted is None]
    if missing and count is None:
        return None
    if missing and count is not None:
        first = count(by_source[missing[0]][:1])  # most files have no columns to compare: one piece shows it
        if not first[0].groups:
            return ()
        new = iter(count([unit for source in missing for unit in by_source[source]]))
        for source in missing:
            counted = ItemCounts.combine([next(new) for _ in by_source[source]])
            cache.take_note(notes[source], asdict(counted))
            counts[source] = counted
    total = ItemCounts.combine([counted for counted in counts.values() if counted is not None])
    for note in total.chance_notes(total.groups) if count is not None else ():
        warnings.warn(note, DataWarning, stacklevel=2)
    return total.groups


def _is_compared(recipe: Recipe, unit: InputPiece) -> bool:
    if unit.piece is None:
        return False
    pieces = recipe.read(unit.source.location)
    return isinstance(pieces, FilePieces) and pieces.reader.compares_lengths


def _note(source: InputSource, read_parts: Parts) -> str:
    return f"items-{key_of([source.sha256, read_parts])}"


def _remembered(cache: StageCache, name: str) -> ItemCounts | None:
    counts = cache.note(name)
    return None if counts is None else ItemCounts(**counts)
