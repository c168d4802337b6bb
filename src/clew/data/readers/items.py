"""Which columns of a file describe the same items, if the structure of the file does not say it.

The rule: ragged columns are the same items if they have the same number of items in every event of every file of a
dataset. Columns that the file itself binds together (branches with one counter, the fields of one collection) form a
collection, and two such collections are never the same items. The reader's setting `items` replaces the rule for the
columns that it names.

Different items may have equal numbers by chance, in a file with few events or if the number never varies. If a random
order of the events would give equal numbers with a probability of more than `CHANCE`, `clew prepare` warns and names
the columns.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clew.data.table import Column, Ragged, Table, different_items
from clew.data.table.hdf5 import item_sets
from clew.errors import DataError

ItemGroups = tuple[tuple[str, ...], ...]
"""Groups of columns; the columns of a group describe the same items."""
CHANCE = 1e-3
_NAMED = 5


@dataclass(frozen=True)
class ItemCounts:
    """The number of items per event of the ragged columns of some events, in a short form.

    Args:
        sets: For each ragged column, the first column that the file binds to the same items.
        digests: By first column: a hash of the number of items of every event.
        histograms: By first column: how many events have how many items.
    """

    sets: dict[str, str]
    digests: dict[str, str]
    histograms: dict[str, dict[str, int]]

    @classmethod
    def of(cls, lengths: Mapping[str, NDArray[Any]], sets: Mapping[str, str]) -> ItemCounts:
        """Return the counts of some events.

        Args:
            lengths: Number of items of each event, by first column of a set.
            sets: See the class.
        """
        arrays = {name: np.ascontiguousarray(array, dtype=np.int64) for name, array in lengths.items()}
        digests = {name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in arrays.items()}
        histograms = {name: _histogram(array) for name, array in arrays.items()}
        return cls(dict(sets), digests, histograms)

    @classmethod
    def of_table(cls, table: Table) -> ItemCounts:
        """Return the counts of a table. Columns of indices are left out: they describe items of another kind."""
        sets = item_sets(table)
        pointing = {sets[name] for name in table.index_of}
        sets = {name: first for name, first in sets.items() if first not in pointing}
        return cls.of({name: table.ragged(name).lengths for name in dict.fromkeys(sets.values())}, sets)

    @classmethod
    def combine(cls, parts: Sequence[ItemCounts]) -> ItemCounts:
        """Return the counts of the events of all parts. Only columns that all parts have are compared."""
        sets = {name: first for name, first in parts[0].sets.items() if all(name in part.sets for part in parts)}
        firsts = [name for name in dict.fromkeys(sets.values()) if all(name in part.digests for part in parts)]
        digests, histograms = {}, {}
        for name in firsts:
            text = json.dumps([part.digests[name] for part in parts])
            digests[name] = hashlib.sha256(text.encode()).hexdigest()
            histograms[name] = dict(sum((Counter(part.histograms[name]) for part in parts), Counter()))
        return cls({name: first for name, first in sets.items() if first in digests}, digests, histograms)

    def without(self, names: Iterable[str]) -> ItemCounts:
        """Return the counts without the sets of some columns, whose items are declared."""
        declared = {self.sets[name] for name in names if name in self.sets}
        return ItemCounts(
            {name: first for name, first in self.sets.items() if first not in declared},
            {name: digest for name, digest in self.digests.items() if name not in declared},
            {name: counts for name, counts in self.histograms.items() if name not in declared},
        )

    @property
    def groups(self) -> ItemGroups:
        """The columns that are the same items by the rule of this module, as far as the file does not say it."""
        members: dict[str, list[str]] = {}
        for name, first in self.sets.items():
            members.setdefault(first, []).append(name)
        equal: dict[str, list[str]] = {}
        for first, digest in self.digests.items():
            equal.setdefault(digest, []).append(first)
        groups = []
        for firsts in equal.values():
            collections = [first for first in firsts if len(members[first]) > 1]
            # with two collections of equal lengths nobody knows to which of them a single column belongs
            joined = firsts if len(collections) < 2 else [first for first in firsts if first not in collections]
            if len(joined) > 1:
                groups.append(tuple(sorted(name for first in joined for name in members[first])))
        return tuple(sorted(groups))

    def chance_notes(self, groups: ItemGroups) -> list[str]:
        """Return a line for every group whose columns may have equal lengths by chance."""
        notes = []
        for group in groups:
            histogram = self.histograms[self.sets[group[0]]]
            if set(histogram) != {"0"} and _probability(list(histogram.values())) > CHANCE:
                names = ", ".join(group[:_NAMED]) + (f" and {len(group) - _NAMED} more" if len(group) > _NAMED else "")
                each = ", ".join(f"[{name}]" for name in group[:_NAMED])
                notes.append(
                    f"{names}: treated as the same items, because their numbers of items agree in all "
                    f"{sum(histogram.values())} events, which may be chance; if they are different items, declare it "
                    f"in the reader's settings, as items: [{each}]"
                )
        return notes


def share_items(table: Table, groups: ItemGroups) -> Table:
    """Return a table in which the columns of each group are the same items, and no others.

    Columns that do not exist or are not ragged are ignored, and so are groups without columns.

    Raises:
        DataError: columns of one group have different numbers of items in an event.
    """
    columns: dict[str, Column] = {}
    for group in groups:
        ragged = {name: column for name in group if isinstance(column := table.get(name), Ragged)}
        if not ragged:
            continue
        first, like = next(iter(ragged.items()))
        others = [name for name in table.items_with(first) if name not in ragged]
        offsets = like.offsets.copy() if others else like.offsets
        for name, column in ragged.items():
            if not np.array_equal(column.offsets, like.offsets):
                raise DataError(different_items(first, like, name, column))
            columns[name] = column if column.offsets is offsets else Ragged(column.values, offsets)
    changed = {name: column for name, column in columns.items() if column is not table[name]}
    return table.join(changed) if changed else table


def match_groups(patterns: Sequence[Sequence[str]], names: Iterable[str]) -> ItemGroups:
    """Return the columns that the patterns of each group match.

    Raises:
        DataError: a column is in two groups.
    """
    columns = list(names)
    groups = tuple(tuple(n for n in columns if any(fnmatchcase(n, p) for p in group)) for group in patterns)
    name, count = next(iter(Counter(name for group in groups for name in group).most_common(1)), ("", 0))
    if count > 1:
        raise DataError(f"items: column '{name}' is in {count} groups; it can be in one")
    return groups


def _histogram(lengths: NDArray[np.int64]) -> dict[str, int]:
    if lengths.size and 0 <= lengths.min() <= lengths.max() <= lengths.size:  # much faster than to sort them
        counts = np.bincount(lengths)
        values = np.flatnonzero(counts)
        counts = counts[values]
    else:
        values, counts = np.unique(lengths, return_counts=True)
    return {str(value): int(count) for value, count in zip(values, counts, strict=True)}


def _probability(counts: Sequence[int]) -> float:
    """Return the probability that a random order of events has the same number of items in every event."""
    return math.exp(sum(math.lgamma(count + 1) for count in counts) - math.lgamma(sum(counts) + 1))
