"""Files of images: clew's own, arrays in HDF5 and blosc2, frames of Wire-Cell, deposits of a simulation."""

from __future__ import annotations

import io
import json
import re
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Annotated, Any, ClassVar

import h5py
import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from clew import Ragged, Table, readers
from clew.data.readers import FilePiece, FilePieces, Reader
from clew.errors import DataError
from clew.recipes.lartpc import images
from clew.recipes.lartpc.columns import CHARGE, CLASSES, EVENT, INDEX, LABEL, SIZE
from clew.recipes.lartpc.readout import Readout

Size = tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]]


def read(path: str, size: tuple[int, int] = SIZE, readout: Readout | None = None) -> Iterable[Table]:
    """The events of a file, by its name; files of other kinds must have the columns of an event."""
    name = path.lower()
    if Frames.accepts(name):
        return FilePieces(Frames(size=size), path)
    if Deposited.accepts(name):
        return FilePieces(Deposited(size=size, readout=readout or Readout()), path)
    if Packed.accepts(name):
        return FilePieces(Packed(size=size), path)
    if Arrays.accepts(name) and _holds(path, "images"):
        return FilePieces(Arrays(size=size), path)
    return readers.read(path)


class _Images(Reader):
    """What the readers of images share."""

    size: Size = SIZE
    """Wires and ticks of the images that come out."""

    def _table(self, events: list[int], found: list[tuple[NDArray[np.int32], NDArray[np.float32]]]) -> Table:
        index = Ragged.from_lists([each for each, _ in found], dtype=np.int32)
        charge = index.share(np.concatenate([each for _, each in found]))
        return Table({EVENT: np.array(events, dtype=np.int64), INDEX: index, CHARGE: charge}, units={CHARGE: "ke"})


class Frames(_Images):
    """Wire-Cell's frames: `frame_TAG_EVENT.npy` (channels, ticks), in electrons, in a tar archive.

    Frames of another size are cut at the far end, or filled with zeros. They have no labels.
    """

    endings: ClassVar[tuple[str, ...]] = (".tar.bz2", ".tar.gz", ".tgz", ".tar")

    tag: str = "gauss"
    """How the tags of the frames to read begin: an archive may have the same frame after several filters."""
    corner: tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)]] = (0, 0)
    """Channel and tick of the frame that become the first of the image."""

    def pieces(self, location: str) -> list[FilePiece]:
        with _tar(location) as archive:
            found = self._members(archive)
        return [FilePiece(place, place + 1) for place in range(len(found))]

    def load(self, location: str, piece: FilePiece) -> Table:
        with _tar(location) as archive:
            name, event = self._members(archive)[piece.start]
            stream = archive.extractfile(name)
            assert stream is not None
            frame = _array(stream.read(), name)
        if frame.ndim != 2 or frame.dtype.kind not in "iuf":
            raise DataError(f"{name} holds {frame.dtype} {frame.shape}, not a frame (channels, ticks)")
        _check(frame, name)
        index, charge = images.pixels(frame, self.size, corner=self.corner)
        return self._table([event], [(index, charge / np.float32(1000))])

    def _members(self, archive: tarfile.TarFile) -> list[tuple[str, int]]:
        names = archive.getnames()
        matches = [re.search(rf"(?:^|/)frame_{re.escape(self.tag)}\w*_(\d+)\.npy$", name) for name in names]
        found = [(match.string, int(match[1])) for match in matches if match]
        if not found:
            there = ", ".join(name for name in names if "frame_" in name) or "none"
            raise DataError(f"no frame_{self.tag}*_EVENT.npy in it; its frames: {there}")
        return sorted(found, key=lambda each: (each[1], each[0]))


class Deposited(_Images):
    """Charges of a simulation: `N-truthDepo.json` in a Bee archive, x, y, z in cm, q in electrons that drift.

    They are drifted and read out, the middle of the charge in the middle of the image. Noise depends on the event's
    place in the archive alone. There are no labels.
    """

    endings: ClassVar[tuple[str, ...]] = (".zip",)

    readout: Readout = Readout()

    def pieces(self, location: str) -> list[FilePiece]:
        with _zip(location) as archive:
            return [FilePiece(place, place + 1) for place in range(len(self._members(archive)))]

    def load(self, location: str, piece: FilePiece) -> Table:
        with _zip(location) as archive:
            name = self._members(archive)[piece.start]
            try:
                found = json.loads(archive.read(name))
                x, y, z, charge = (np.asarray(found[key], dtype=np.float64) for key in ("x", "y", "z", "q"))
                event = int(found["eventNo"])
                place = np.stack([x, y, z], axis=1)
            except (ValueError, KeyError, TypeError) as error:
                raise DataError(f"{name}: not deposits with x, y, z, q and eventNo ({error!r})") from error
        _check(charge, name)
        if not len(charge) or not np.isfinite(place).all():
            raise DataError(f"{name}: {'places that are not finite' if len(charge) else 'no deposits'}")
        middle = np.array([self.size[1] * self.readout.step, 0.0, self.size[0] * self.readout.pitch]) / 2
        moved = place - _middle(place, charge) + middle
        image = self.readout.image(np.random.default_rng(piece.start), moved, charge / 1000, self.size)
        return self._table([event], [(image.place, image.charge)])

    def _members(self, archive: zipfile.ZipFile) -> list[str]:
        found = [name for name in archive.namelist() if name.endswith("-truthDepo.json")]
        if not found:
            raise DataError("no N-truthDepo.json in it: not a Bee archive of deposits")
        return sorted(found, key=lambda name: [int(part) for part in re.findall(r"\d+", name)])


def _middle(place: NDArray[np.float64], charge: NDArray[np.float64]) -> NDArray[np.float64]:
    """Between the places that leave out a twentieth of the charge on either side, along each axis."""
    found = []
    for axis in place.T:
        order = np.argsort(axis, kind="stable")
        share = np.cumsum(charge[order]) / charge.sum()
        found.append(np.mean([axis[order][np.searchsorted(share, each)] for each in (0.05, 0.95)]))
    return np.array(found)


class Arrays(_Images):
    """HDF5 with dense images: `images` (n, wires, ticks), in thousands of electrons, and `labels` (n) if known."""

    endings: ClassVar[tuple[str, ...]] = (".h5", ".hdf5")

    chunk: Annotated[int, Field(ge=1)] = 16
    """Images in a piece."""

    def pieces(self, location: str) -> list[FilePiece]:
        with self._opened(location) as file:
            many = len(self._dataset(file))
            labels = len(file["labels"]) if "labels" in file else many
        if labels != many:
            raise DataError(f"{many} images and {labels} labels")
        if not many:
            raise DataError("no images in it")
        return [FilePiece(first, min(first + self.chunk, many)) for first in range(0, many, self.chunk)]

    def load(self, location: str, piece: FilePiece) -> Table:
        events = list(range(piece.start, piece.stop))
        with self._opened(location) as file:
            dataset = self._dataset(file)
            found = []
            for event in events:
                image = np.asarray(dataset[event])
                _check(image, f"image {event}")
                found.append(images.pixels(image, self.size))
            labels = np.asarray(file["labels"][piece.start : piece.stop]) if "labels" in file else None
        table = self._table(events, found)
        return table if labels is None else table.join({LABEL: _labels(labels, piece.start)})

    def _opened(self, location: str) -> AbstractContextManager[Any]:
        return _hdf5(location)

    def _dataset(self, file: Any) -> Any:
        dataset = file["images"]
        if dataset.ndim != 3 or dataset.dtype.kind not in "iuf":
            raise DataError(f"dataset 'images' holds {dataset.dtype} {dataset.shape}, not images (n, wires, ticks)")
        if dataset.shape[1:] != self.size:
            raise DataError(
                f"images of {dataset.shape[1]} x {dataset.shape[2]}, and the recipe's are {self.size[0]} x "
                f"{self.size[1]}; set image.rows and image.columns"
            )
        return dataset


class Packed(Arrays):
    """Dense images compressed by blosc2: an array (n, wires, ticks) in a file `.b2nd`, `labels` among its metadata."""

    endings: ClassVar[tuple[str, ...]] = (".b2nd",)

    def _opened(self, location: str) -> AbstractContextManager[Any]:
        return nullcontext(_blosc2(location))


def _labels(found: NDArray[Any], first: int) -> NDArray[np.int64]:
    whole = found.astype(np.int64)
    bad = np.flatnonzero((whole != found) | (whole < 0) | (whole >= len(CLASSES)))
    if len(bad):
        told = ", ".join(f"{place} {name}" for place, name in enumerate(CLASSES))
        raise DataError(f"image {first + bad[0]}: label {found[bad[0]]}; labels are {told}")
    return whole


def _check(values: NDArray[Any], what: str) -> None:
    """That charges are numbers, 0 or above."""
    if not np.isfinite(values).all():
        raise DataError(f"{what}: charge that is not finite")
    if (values < 0).any():
        raise DataError(f"{what}: negative charge ({values.min():g}); images must be after signal processing")


def _holds(path: str, name: str) -> bool:
    try:
        with h5py.File(path, "r") as file:
            return name in file and "clew_table" not in file.attrs
    except OSError:
        return False  # not here, or not what its name says: the HDF5 reader says it better


@contextmanager
def _hdf5(location: str) -> Iterator[Any]:
    try:
        with h5py.File(location, "r") as file:
            yield file
    except (OSError, KeyError, RuntimeError) as error:
        raise DataError(f"not a readable HDF5 file of images ({error})") from error


def _blosc2(location: str) -> dict[str, Any]:
    import blosc2

    try:
        array: Any = blosc2.open(location, mode="r")
        known = {"labels": np.asarray(array.vlmeta["labels"])} if "labels" in array.vlmeta else {}
        return {"images": array, **known}
    except (OSError, RuntimeError, AttributeError) as error:
        raise DataError(f"not a readable blosc2 file of images ({error})") from error


@contextmanager
def _tar(location: str) -> Iterator[tarfile.TarFile]:
    try:
        with tarfile.open(location) as archive:
            yield archive
    except (OSError, EOFError, tarfile.TarError) as error:
        raise DataError(f"not a readable tar archive ({error})") from error


@contextmanager
def _zip(location: str) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(location) as archive:
            yield archive
    except (OSError, zipfile.BadZipFile) as error:
        raise DataError(f"not a readable zip archive ({error})") from error


def _array(data: bytes, name: str) -> NDArray[Any]:
    try:
        found: NDArray[Any] = np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise DataError(f"{name}: not a NumPy array ({error})") from error
    return found
