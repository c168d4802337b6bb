"""HDF5 files with a dataset of images for every class, as those of the machine-learning schools: QCD (n, 30, 30, 1)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, ClassVar, Self

import h5py
import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from clew import Ragged, Table
from clew.data.readers import FilePiece, FilePieces, Reader
from clew.errors import DataError

PIXELS = ("part_pt", "part_deta", "part_dphi", "jet_pt")
"""What an image is as constituents: every pixel that is not empty, the hardest first; and their sum. Places are in
pixels from the middle."""


class ImageFile(Reader):
    """Settings of the reader: all classes one after the other."""

    endings: ClassVar[tuple[str, ...]] = (".h5", ".hdf5")

    classes: tuple[str, ...]
    """Datasets (n, rows, columns) or (n, rows, columns, 1); the number of the class is in `label`."""
    columns: tuple[str, ...] = ()
    """`image`, and those of PIXELS; default: all."""
    chunk: Annotated[int, Field(ge=1)] = 5000
    """Images in a piece."""
    unlabelled: bool = False
    """Whether a file with none of the classes is taken too: all its datasets, without `label`."""

    def with_optional(self, names: Collection[str]) -> Self:
        return self.model_copy(update={"unlabelled": "label" in names})

    def pieces(self, location: str) -> list[FilePiece]:
        """Cut at the ends of classes too: counted through all of them."""
        with _opened(location) as file:
            ends = np.cumsum([len(_dataset(file, name)) for name in self._names(file)]).tolist()
        found, begin = [], 0
        for end in ends:
            found += [FilePiece(first, min(first + self.chunk, end)) for first in range(begin, end, self.chunk)]
            begin = end
        if not found:
            raise DataError("no images in it")
        return found

    def load(self, location: str, piece: FilePiece) -> Table:
        with _opened(location) as file:
            begin, names = 0, self._names(file)
            for number, name in enumerate(names):
                dataset = _dataset(file, name)
                if piece.start < begin + len(dataset):
                    images = np.asarray(dataset[piece.start - begin : piece.stop - begin], dtype=np.float32)
                    known = number if names == self.classes else None
                    return self._table(images.reshape(images.shape[:3]), known, piece.start)
                begin += len(dataset)
        raise DataError("the file has changed meanwhile")

    def _names(self, file: Any) -> tuple[str, ...]:
        """Of the datasets to read."""
        blind = self.unlabelled and not any(name in file for name in self.classes)
        return tuple(file) if blind else self.classes

    def _table(self, images: NDArray[np.float32], number: int | None, first: int) -> Table:
        wanted = self.columns or ("image", *PIXELS)
        unknown = [name for name in wanted if name not in ("image", "label", *PIXELS)]
        if unknown:
            raise DataError(f"no column '{unknown[0]}': images have image, {', '.join(PIXELS)}")
        columns: dict[str, Any] = {"event": np.arange(first, first + len(images)), "image": images, **pixels(images)}
        kept = {name: column for name, column in columns.items() if name == "event" or name in wanted}
        return Table({**kept, **({} if number is None else {"label": np.full(len(images), number)})})


def read(location: str, classes: Sequence[str], columns: Sequence[str]) -> FilePieces:
    """A file's images as a lazy sequence of tables."""
    return FilePieces(ImageFile(classes=tuple(classes), columns=tuple(columns)), location)


def pixels(images: NDArray[np.float32]) -> dict[str, Any]:
    """Images as constituents."""
    jet, row, column = np.nonzero(images)
    value = images[jet, row, column]
    order = np.lexsort((-value, jet))
    share = Ragged.from_lengths(value[order], np.bincount(jet, minlength=len(images)))
    middle = [(size - 1) / 2 for size in images.shape[1:]]
    return {
        "part_pt": share,
        "part_deta": share.share((row[order] - middle[0]).astype(np.float32)),
        "part_dphi": share.share((column[order] - middle[1]).astype(np.float32)),
        "jet_pt": images.sum(axis=(1, 2)),
    }


@contextmanager
def _opened(location: str) -> Iterator[Any]:
    try:
        with h5py.File(location, "r") as file:
            yield file
    except (OSError, RuntimeError) as error:
        raise DataError(f"not a readable HDF5 file ({error})") from error


def _dataset(file: Any, name: str) -> Any:
    if name not in file:
        raise DataError(f"no dataset '{name}' in it, only {', '.join(file)}; data.images names one a class")
    dataset = file[name]
    if dataset.ndim not in (3, 4) or (dataset.ndim == 4 and dataset.shape[3] != 1) or dataset.dtype.kind not in "iuf":
        raise DataError(f"dataset '{name}' holds {dataset.dtype} {dataset.shape}, not images (n, rows, columns)")
    return dataset
