"""The base class of the readers that convert the columns of another reader into elements and targets."""

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
from clew.recipes.particleflow.targets import Array, VisibleParticles


class ParticleFlowReader(Reader):
    """Reads events of one file format as `elements` and `targets`, with fixed columns where the file has them."""

    chunk: Annotated[int, Field(ge=1)] = 100
    """Events per piece."""
    allow_missing_truth: bool = False
    """Whether a file may lack the truth. It then has no `targets`, and no flags of true electrons and muons."""

    def with_optional(self, names: Collection[str]) -> Self:
        return self.model_copy(update={"allow_missing_truth": TARGETS in names})

    @abstractmethod
    def file_reader(self) -> Reader:
        """Return the reader of the file format."""

    @abstractmethod
    def build_events(self, columns: Table) -> Table:
        """Convert the columns of the file to the columns of particle flow."""

    def pieces(self, location: str) -> list[FilePiece]:
        return self.file_reader().pieces(location)

    def load(self, location: str, piece: FilePiece) -> Table:
        columns = self.file_reader().load(location, piece)
        events = self.build_events(columns)
        return events.join({"event": np.arange(piece.start, piece.start + len(columns))})


def global_index(index: Ragged, like: Ragged, where: Array | None = None) -> Array:
    """Convert indices within events to indices over all items.

    Args:
        index: Indices of items within their events.
        like: A column of the items that the indices refer to.
        where: A mask of the indices to convert. Default: all.

    Raises:
        DataError: An index is outside its event.
    """
    number, event = index.values.astype(np.int64), index.events
    if where is not None:
        number, event = number[where], event[where]
    wrong = (number < 0) | (number >= like.lengths[event])
    if wrong.any():
        raise DataError(f"event {event[wrong][0]}: number {number[wrong][0]} points at nothing")
    return np.asarray(number + like.offsets[event])


def build_elements(
    particles: VisibleParticles,
    track: Array,
    em_fraction: Array,
    outer: tuple[Array, Array],
    lepton_flags: tuple[Array, Array],
) -> Array:
    """Return the elements (n, 12) of tracks and towers that are described by momenta.

    Args:
        particles: Momenta of the tracks and towers.
        track: Which of them are tracks.
        em_fraction: Electromagnetic fraction of the energy of towers.
        outer: Eta and phi of tracks at the calorimeter.
        lepton_flags: Which are a true muon, and which a true electron.
    """
    elements = np.zeros((len(particles.pt), FEATURES), dtype=np.float32)
    elements[:, 0] = np.where(track, TRACK, TOWER)
    momentum = particles.pt * np.cosh(particles.eta)
    transverse = np.where(track, particles.pt, particles.energy / np.cosh(particles.eta))
    for place, values in enumerate((transverse, particles.eta, np.sin(particles.phi), np.cos(particles.phi)), start=1):
        elements[:, place] = values
    elements[:, 5] = np.where(track, momentum, particles.energy)
    elements[:, 6] = np.where(track, outer[0], em_fraction * particles.energy)
    elements[:, 7] = np.where(track, np.sin(outer[1]), (1 - em_fraction) * particles.energy)
    elements[track, 8] = np.cos(outer[1])[track]
    elements[track, 9] = particles.charge[track]
    for place, flag in enumerate(lepton_flags, start=10):
        elements[:, place] = flag & track
    return elements


def build_table(like: Ragged, elements: Array, targets: Array | None, **fixed: Any) -> Table:
    """Return a table of events whose elements have the offsets of `like`."""
    column = like.share(elements)
    truth = {} if targets is None else {TARGETS: column.share(targets)}
    return Table({**fixed, ELEMENTS: column, **truth}, units=dict.fromkeys(fixed, "GeV"))
