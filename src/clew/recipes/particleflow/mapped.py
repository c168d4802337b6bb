"""Readers that make elements and targets of what another reader finds in a file."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection
from typing import Annotated, Any, Self

import numpy as np
from pydantic import Field

from clew import Ragged, Table
from clew.data.readers import FilePiece, Reader
from clew.errors import DataError
from clew.recipes.particleflow.columns import ELEMENTS, FEATURES, TARGETS, TOWER, TRACK
from clew.recipes.particleflow.truth import Array, Particles


class Mapped(Reader):
    """Events of one kind of file as `elements` and `targets`, and what else is known of them."""

    chunk: Annotated[int, Field(ge=1)] = 100
    """Events in a piece."""
    blind: bool = False
    """Whether a file may lack the truth: there are no `targets` then, nor true electrons and muons among tracks."""

    def with_optional(self, names: Collection[str]) -> Self:
        return self.model_copy(update={"blind": TARGETS in names})

    @abstractmethod
    def inner(self) -> Reader:
        """Who reads the file."""

    @abstractmethod
    def events(self, found: Table) -> Table:
        """What it found, in the columns of particle flow."""

    def pieces(self, location: str) -> list[FilePiece]:
        return self.inner().pieces(location)

    def load(self, location: str, piece: FilePiece) -> Table:
        found = self.inner().load(location, piece)
        made = self.events(found)
        return made.join({"event": np.arange(piece.start, piece.start + len(found))})


def counted(index: Ragged, like: Ragged, where: Array | None = None) -> Array:
    """Numbers of items within their events (those `where` it is true) as numbers among all items of `like`.

    Raises:
        DataError: one points at nothing.
    """
    number, event = index.values.astype(np.int64), index.events
    if where is not None:
        number, event = number[where], event[where]
    wrong = (number < 0) | (number >= like.lengths[event])
    if wrong.any():
        raise DataError(f"event {event[wrong][0]}: number {number[wrong][0]} points at nothing")
    return np.asarray(number + like.offsets[event])


def elements(own: Particles, track: Array, em: Array, outer: tuple[Array, Array], flags: tuple[Array, Array]) -> Array:
    """Elements (n, 12) of what a file describes by momenta: tracks where `track` is true, else towers.

    `em` is the share of electromagnetic energy of towers, `outer` eta and phi of tracks at the calorimeter, `flags`
    which are a true muon and a true electron.
    """
    made = np.zeros((len(own.pt), FEATURES), dtype=np.float32)
    made[:, 0] = np.where(track, TRACK, TOWER)
    momentum = own.pt * np.cosh(own.eta)
    transverse = np.where(track, own.pt, own.energy / np.cosh(own.eta))
    for place, values in enumerate((transverse, own.eta, np.sin(own.phi), np.cos(own.phi)), start=1):
        made[:, place] = values
    made[:, 5] = np.where(track, momentum, own.energy)
    made[:, 6] = np.where(track, outer[0], em * own.energy)
    made[:, 7] = np.where(track, np.sin(outer[1]), (1 - em) * own.energy)
    made[track, 8] = np.cos(outer[1])[track]
    made[track, 9] = own.charge[track]
    for place, flag in enumerate(flags, start=10):
        made[:, place] = flag & track
    return made


def table(like: Ragged, made: Array, targets: Array | None, **more: Any) -> Table:
    """Events of elements that lie as the items of `like` do."""
    first = like.share(made)
    truth = {} if targets is None else {TARGETS: first.share(targets)}
    return Table({**more, ELEMENTS: first, **truth}, units=dict.fromkeys(more, "GeV"))
