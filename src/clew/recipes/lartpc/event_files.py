"""Readers of image files: generated events, arrays in HDF5 and blosc2, Wire-Cell frames, deposits of a simulation."""

from __future__ import annotations

import io
import json
import re
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from clew import Ragged, Table, readers
from clew.data.readers import FilePiece, FilePieces, Reader, open_hdf5
from clew.errors import DataError
from clew.recipes.lartpc import images
from clew.recipes.lartpc.columns import CHARGE, CLASSES, EVENT, INDEX, LABEL, SIZE
from clew.recipes.lartpc.readout import Readout

Size = tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]]


def read_events(path: str, size: tuple[int, int] = SIZE, readout: Readout | None = None) -> Iterable[Table]:
    """Read the events of a file. The reader is chosen by the ending of the file name.

    Args:
        path: The file.
        size: Wires and ticks of the images.
        readout: Read-out of the detector, for files of deposits.
    """
    name = path.lower()
    if WireCellFrameReader.accepts(name):
        return FilePieces(WireCellFrameReader(size=size), path)
    if DepositReader.accepts(name):
        return FilePieces(DepositReader(size=size, readout=readout or Readout()), path)
    if Blosc2ImageReader.accepts(name):
        return FilePieces(Blosc2ImageReader(size=size), path)
    if Hdf5ImageReader.accepts(name) and _has_dataset(path, "images"):
        return FilePieces(Hdf5ImageReader(size=size), path)
    return readers.read(path)


class _ImageReader(Reader):
    """Base class of the readers of images."""

    size: Size = SIZE
    """Wires and ticks of the images."""

    def _table(self, events: list[int], pixels: list[tuple[NDArray[np.int32], NDArray[np.float32]]]) -> Table:
        index = Ragged.from_lists([each for each, _ in pixels], dtype=np.int32)
        charge = index.share(np.concatenate([each for _, each in pixels]))
        return Table({EVENT: np.array(events, dtype=np.int64), INDEX: index, CHARGE: charge}, units={CHARGE: "ke"})


class WireCellFrameReader(_ImageReader):
    """Reads Wire-Cell frames: `frame_TAG_EVENT.npy` (channels, ticks), in electrons, in a tar archive.

    Frames of another size are cut at the end, or filled with zeros. They have no labels.
    """

    endings: ClassVar[tuple[str, ...]] = (".tar.bz2", ".tar.gz", ".tgz", ".tar")

    tag: str = "gauss"
    """Prefix of the tags of the frames to read. An archive may contain the same frame after several filters."""
    corner: tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)]] = (0, 0)
    """Channel and tick of the frame that become the first pixel of the image."""

    def pieces(self, location: str) -> list[FilePiece]:
        with _open_tar(location) as archive:
            members = self._members(archive)
        return [FilePiece(place, place + 1) for place in range(len(members))]

    def load(self, location: str, piece: FilePiece) -> Table:
        with _open_tar(location) as archive:
            name, event = self._members(archive)[piece.start]
            stream = archive.extractfile(name)
            assert stream is not None
            frame = _load_array(stream.read(), name)
        if frame.ndim != 2 or frame.dtype.kind not in "iuf":
            raise DataError(f"{name} holds {frame.dtype} {frame.shape}, not a frame (channels, ticks)")
        _check_charges(frame, name)
        index, charge = images.nonzero_pixels(frame, self.size, corner=self.corner)
        return self._table([event], [(index, charge / np.float32(1000))])

    def _members(self, archive: tarfile.TarFile) -> list[tuple[str, int]]:
        names = archive.getnames()
        matches = [re.search(rf"(?:^|/)frame_{re.escape(self.tag)}\w*_(\d+)\.npy$", name) for name in names]
        members = [(match.string, int(match[1])) for match in matches if match]
        if not members:
            frames = ", ".join(name for name in names if "frame_" in name) or "none"
            raise DataError(f"no frame_{self.tag}*_EVENT.npy in it; its frames: {frames}")
        return sorted(members, key=lambda each: (each[1], each[0]))


class DepositReader(_ImageReader):
    """Reads deposits of a simulation: `N-truthDepo.json` in a Bee archive, x, y, z in cm, q in drifting electrons.

    The deposits are drifted and read out, with the centre of the charge at the centre of the image. The noise depends
    only on the position of the event in the archive. There are no labels.
    """

    endings: ClassVar[tuple[str, ...]] = (".zip",)

    readout: Readout = Readout()

    def pieces(self, location: str) -> list[FilePiece]:
        with _open_zip(location) as archive:
            return [FilePiece(place, place + 1) for place in range(len(self._members(archive)))]

    def load(self, location: str, piece: FilePiece) -> Table:
        with _open_zip(location) as archive:
            name = self._members(archive)[piece.start]
            try:
                content = json.loads(archive.read(name))
                x, y, z, charge = (np.asarray(content[key], dtype=np.float64) for key in ("x", "y", "z", "q"))
                event = int(content["eventNo"])
                place = np.stack([x, y, z], axis=1)
            except (ValueError, KeyError, TypeError) as error:
                raise DataError(f"{name}: not deposits with x, y, z, q and eventNo ({error!r})") from error
        _check_charges(charge, name)
        if not len(charge) or not np.isfinite(place).all():
            raise DataError(f"{name}: {'places that are not finite' if len(charge) else 'no deposits'}")
        image_centre = np.array([self.size[1] * self.readout.step, 0.0, self.size[0] * self.readout.pitch]) / 2
        moved = place - _charge_centre(place, charge) + image_centre
        image = self.readout.image(np.random.default_rng(piece.start), moved, charge / 1000, self.size)
        return self._table([event], [(image.place, image.charge)])

    def _members(self, archive: zipfile.ZipFile) -> list[str]:
        members = [name for name in archive.namelist() if name.endswith("-truthDepo.json")]
        if not members:
            raise DataError("no N-truthDepo.json in it: not a Bee archive of deposits")
        return sorted(members, key=lambda name: [int(part) for part in re.findall(r"\d+", name)])


def _charge_centre(place: NDArray[np.float64], charge: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the midpoint of the 5% and 95% quantiles of the charge, along each axis."""
    centre = []
    for axis in place.T:
        order = np.argsort(axis, kind="stable")
        share = np.cumsum(charge[order]) / charge.sum()
        centre.append(np.mean([axis[order][np.searchsorted(share, each)] for each in (0.05, 0.95)]))
    return np.array(centre)


class Hdf5ImageReader(_ImageReader):
    """Reads dense images in HDF5: `images` (n, wires, ticks), thousands of electrons, and optional `labels` (n)."""

    endings: ClassVar[tuple[str, ...]] = (".h5", ".hdf5")

    chunk: Annotated[int, Field(ge=1)] = 16
    """Images per piece."""

    def pieces(self, location: str) -> list[FilePiece]:
        with self._opened(location) as file:
            count = len(self._dataset(file))
            labels = len(file["labels"]) if "labels" in file else count
        if labels != count:
            raise DataError(f"{count} images and {labels} labels")
        if not count:
            raise DataError("no images in it")
        return [FilePiece(first, min(first + self.chunk, count)) for first in range(0, count, self.chunk)]

    def load(self, location: str, piece: FilePiece) -> Table:
        events = list(range(piece.start, piece.stop))
        with self._opened(location) as file:
            dataset = self._dataset(file)
            pixels = []
            for event in events:
                image = np.asarray(dataset[event])
                _check_charges(image, f"image {event}")
                pixels.append(images.nonzero_pixels(image, self.size))
            labels = np.asarray(file["labels"][piece.start : piece.stop]) if "labels" in file else None
        table = self._table(events, pixels)
        return table if labels is None else table.join({LABEL: _checked_labels(labels, piece.start)})

    def _opened(self, location: str) -> AbstractContextManager[Any]:
        return open_hdf5(location)

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


class Blosc2ImageReader(Hdf5ImageReader):
    """Reads dense images in blosc2: an array (n, wires, ticks) in a file `.b2nd`, with `labels` in its metadata."""

    endings: ClassVar[tuple[str, ...]] = (".b2nd",)

    def _opened(self, location: str) -> AbstractContextManager[Any]:
        return nullcontext(_open_blosc2(location))


def _checked_labels(labels: NDArray[Any], first: int) -> NDArray[np.int64]:
    integers = labels.astype(np.int64)
    bad = np.flatnonzero((integers != labels) | (integers < 0) | (integers >= len(CLASSES)))
    if len(bad):
        allowed = ", ".join(f"{place} {name}" for place, name in enumerate(CLASSES))
        raise DataError(f"image {first + bad[0]}: label {labels[bad[0]]}; labels are {allowed}")
    return integers


def _check_charges(values: NDArray[Any], what: str) -> None:
    """Raise DataError unless all charges are finite and not negative."""
    if not np.isfinite(values).all():
        raise DataError(f"{what}: charge that is not finite")
    if (values < 0).any():
        raise DataError(f"{what}: negative charge ({values.min():g}); images must be after signal processing")


def _has_dataset(path: str, name: str) -> bool:
    try:
        with open_hdf5(path) as file:
            return name in file and "clew_table" not in file.attrs
    except DataError:
        return False  # the HDF5 reader reports missing and unreadable files


def _open_blosc2(location: str) -> dict[str, Any]:
    import blosc2

    try:
        # "safe": a file can also hold Python source and names of other files, which full access would use
        array: Any = blosc2.open(location, mode="r", deserialize="safe")
        labels = {"labels": np.asarray(array.vlmeta["labels"])} if "labels" in array.vlmeta else {}
        return {"images": array, **labels}
    except (OSError, RuntimeError, AttributeError, ValueError) as error:
        raise DataError(f"not a readable blosc2 file of images ({error})") from error


@contextmanager
def _open_tar(location: str) -> Iterator[tarfile.TarFile]:
    try:
        with tarfile.open(location) as archive:
            yield archive
    except (OSError, EOFError, tarfile.TarError) as error:
        raise DataError(f"not a readable tar archive ({error})") from error


@contextmanager
def _open_zip(location: str) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(location) as archive:
            yield archive
    except (OSError, zipfile.BadZipFile) as error:
        raise DataError(f"not a readable zip archive ({error})") from error


def _load_array(data: bytes, name: str) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise DataError(f"{name}: not a NumPy array ({error})") from error
    return array
