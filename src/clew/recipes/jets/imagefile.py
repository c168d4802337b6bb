"""Reader for HDF5 files with one dataset of images per class, for example QCD (n, 30, 30, 1)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from clew import Ragged, Table
from clew.data.readers import FilePiece, FilePieces, Reader, open_hdf5
from clew.errors import DataError

PIXELS = ("part_pt", "part_deta", "part_dphi", "jet_pt")
"""The columns of an image as constituents: all filled pixels, the highest value first, and their sum. Positions are in
pixels from the centre."""


class ImageFile(Reader):
    """The reader. It reads all classes one after the other."""

    endings: ClassVar[tuple[str, ...]] = (".h5", ".hdf5")

    classes: tuple[str, ...]
    """Names of datasets (n, rows, columns) or (n, rows, columns, 1). The number of the class becomes `label`."""
    columns: tuple[str, ...] = ()
    """Columns to read, `image` and those of PIXELS. Default: all."""
    chunk: Annotated[int, Field(ge=1)] = 5000
    """Images per piece."""
    unlabelled: bool = False
    """Whether a file with none of the classes is accepted: all its datasets are read, without `label`."""

    def with_optional(self, names: Collection[str]) -> Self:
        return self.model_copy(update={"unlabelled": "label" in names})

    def pieces(self, location: str) -> list[FilePiece]:
        """FilePieces of at most `chunk` images of one class, numbered through all classes."""
        with open_hdf5(location) as file:
            ends = np.cumsum([len(_dataset(file, name)) for name in self._names(file)]).tolist()
        pieces, start = [], 0
        for end in ends:
            pieces += [FilePiece(first, min(first + self.chunk, end)) for first in range(start, end, self.chunk)]
            start = end
        if not pieces:
            raise DataError("no images in it")
        return pieces

    def load(self, location: str, piece: FilePiece) -> Table:
        with open_hdf5(location) as file:
            start, names = 0, self._names(file)
            for number, name in enumerate(names):
                dataset = _dataset(file, name)
                if piece.start < start + len(dataset):
                    images = np.asarray(dataset[piece.start - start : piece.stop - start], dtype=np.float32)
                    label = number if names == self.classes else None
                    return self._table(images.reshape(images.shape[:3]), label, piece.start)
                start += len(dataset)
        raise DataError("the file has changed meanwhile")

    def _names(self, file: Any) -> tuple[str, ...]:
        """Names of the datasets to read."""
        blind = self.unlabelled and not any(name in file for name in self.classes)
        return tuple(file) if blind else self.classes

    def _table(self, images: NDArray[np.float32], number: int | None, first: int) -> Table:
        names = self.columns or ("image", *PIXELS)
        unknown = [name for name in names if name not in ("image", "label", *PIXELS)]
        if unknown:
            raise DataError(f"no column '{unknown[0]}': images have image, {', '.join(PIXELS)}")
        columns: dict[str, Any] = {"event": np.arange(first, first + len(images)), "image": images, **pixels(images)}
        selected = {name: column for name, column in columns.items() if name == "event" or name in names}
        return Table({**selected, **({} if number is None else {"label": np.full(len(images), number)})})


def read(location: str, classes: Sequence[str], columns: Sequence[str]) -> FilePieces:
    """The images of a file as a lazy sequence of tables."""
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


def _dataset(file: Any, name: str) -> Any:
    if name not in file:
        raise DataError(f"no dataset '{name}' in it, only {', '.join(file)}; data.images names one dataset per class")
    dataset = file[name]
    if dataset.ndim not in (3, 4) or (dataset.ndim == 4 and dataset.shape[3] != 1) or dataset.dtype.kind not in "iuf":
        raise DataError(f"dataset '{name}' holds {dataset.dtype} {dataset.shape}, not images (n, rows, columns)")
    return dataset
