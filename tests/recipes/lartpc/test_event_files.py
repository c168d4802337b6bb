"""Frames, deposits and arrays: what is read, and one error line for other files."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import blosc2
import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

from clew import concat
from clew.data.readers import FilePieces
from clew.errors import DataError
from clew.recipes.lartpc import event_files, images
from clew.recipes.lartpc.columns import CHARGE, EVENT, INDEX, LABEL, SIZE
from clew.recipes.lartpc.generate import events

from . import DATA, needs_data

SMALL = (20, 30)


def write_tar(path: Path, arrays: dict[str, NDArray[Any]]) -> Path:
    with tarfile.open(path, "w:bz2") as archive:
        for name, array in arrays.items():
            stream = io.BytesIO()
            np.save(stream, array)
            entry = tarfile.TarInfo(name)
            entry.size = stream.tell()
            stream.seek(0)
            archive.addfile(entry, stream)
    return path


def write_images(path: Path, dense: NDArray[Any], labels: Any = None) -> Path:
    with h5py.File(path, "w") as file:
        file["images"] = dense
        if labels is not None:
            file["labels"] = labels
    return path


def problem(path: Path, size: tuple[int, int] = SMALL) -> str:
    with pytest.raises(DataError) as caught:
        list(event_files.read_events(str(path), size))
    return str(caught.value)


@pytest.mark.slow
@needs_data
@pytest.mark.parametrize(
    ("name", "event"), [("protodunehd-sp-frames-anode1", 40896), ("protodunevd-sp-frames-anode7", 339850)]
)
def test_real_frames(name: str, event: int) -> None:
    path = DATA / f"{name}.tar.bz2"
    (table,) = event_files.read_events(str(path), SIZE)
    images.check_images(table, SIZE)
    with tarfile.open(path) as archive:
        member = next(each for each in archive.getnames() if each.startswith("frame_gauss"))
        stream = archive.extractfile(member)
        assert stream is not None
        frame = np.load(io.BytesIO(stream.read()))
    assert table.fixed(EVENT).tolist() == [event]
    image = images.dense_image(table.ragged(INDEX)[0], table.ragged(CHARGE)[0], SIZE)
    assert np.array_equal(image[: len(frame)], frame[:, : SIZE[1]] / np.float32(1000))
    assert not image[len(frame) :].any()


@needs_data
def test_real_deposits() -> None:
    pieces = event_files.read_events(str(DATA / "test_beedeposource.zip"), SIZE)
    assert isinstance(pieces, FilePieces) and len(pieces) == 10
    table, again = pieces[2], pieces[2]
    images.check_images(table, SIZE)
    assert np.array_equal(table.ragged(CHARGE).values, again.ragged(CHARGE).values)
    assert 10_000 < table.ragged(INDEX).lengths[0] < 100_000
    wire, tick = np.divmod(table.ragged(INDEX).values, SIZE[1])
    weights = table.ragged(CHARGE).values
    assert abs(np.average(wire, weights=weights) - 1800) < 600 and abs(np.average(tick, weights=weights) - 1800) < 900


def test_frames_by_tag(tmp_path: Path) -> None:
    frame = np.zeros((25, 20), dtype=np.float32)
    frame[3, 4], frame[24, 19] = 2500, 1000
    other = frame * 2
    path = write_tar(tmp_path / "f.tar.bz2", {"frame_wiener0_7.npy": other, "frame_gauss0_7.npy": frame})
    (table,) = event_files.read_events(str(path), SMALL)
    assert table.ragged(INDEX).values.tolist() == [3 * 30 + 4]
    assert table.ragged(CHARGE).values.tolist() == [2.5]
    assert LABEL not in table


def test_frames_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.bz2"
    frame = np.ones((4, 4))
    assert "no frame_gauss*_EVENT.npy in it; its frames: frame_raw_1.npy" in problem(
        write_tar(path, {"frame_raw_1.npy": frame})
    )
    assert "frame_gauss_1.npy: charge that is not finite" in problem(
        write_tar(path, {"frame_gauss_1.npy": frame * np.nan})
    )
    assert "negative charge (-1)" in problem(write_tar(path, {"frame_gauss_1.npy": -frame}))
    assert "not a frame (channels, ticks)" in problem(write_tar(path, {"frame_gauss_1.npy": frame[0]}))
    path.write_bytes(b"nonsense")
    assert "not a readable tar archive" in problem(path)


def test_deposits_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"

    def write(content: Any, name: str = "data/0/0-truthDepo.json") -> Path:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(name, json.dumps(content))
        return path

    good = {"x": [1.0], "y": [1.0], "z": [1.0], "q": [1e5], "eventNo": "3"}
    assert [table.fixed(EVENT).tolist() for table in event_files.read_events(str(write(good)), SMALL)] == [[3]]
    assert "no N-truthDepo.json in it" in problem(write(good, "other.json"))
    assert "not deposits with x, y, z, q" in problem(write({"x": [1]}))
    assert "no deposits" in problem(write({**good, "x": [], "y": [], "z": [], "q": []}))
    assert "negative charge" in problem(write({**good, "q": [-5.0]}))
    assert "not deposits" in problem(write({**good, "x": [1.0, 2.0]}))
    path.write_bytes(b"PK nonsense")
    assert "not a readable zip archive" in problem(path)


def test_arrays_in_hdf5(tmp_path: Path) -> None:
    dense = np.random.default_rng(1).poisson(0.1, (40, *SMALL)).astype(np.float32)
    path = write_images(tmp_path / "a.h5", dense, np.arange(40) % 5)
    table = concat(list(event_files.read_events(str(path), SMALL)))
    assert table.fixed(LABEL).tolist() == [n % 5 for n in range(40)]
    for event in (0, 17, 39):
        assert np.array_equal(
            images.dense_image(table.ragged(INDEX)[event], table.ragged(CHARGE)[event], SMALL), dense[event]
        )


def test_arrays_in_blosc2(tmp_path: Path) -> None:
    dense = np.random.default_rng(1).poisson(0.1, (40, *SMALL)).astype(np.float32)
    path = tmp_path / "a.b2nd"
    array = blosc2.asarray(dense, chunks=(1, *SMALL), urlpath=str(path))
    array.vlmeta["labels"] = [n % 5 for n in range(40)]
    table = concat(list(event_files.read_events(str(path), SMALL)))
    assert table.fixed(LABEL).tolist() == [n % 5 for n in range(40)]
    for event in (0, 39):
        image = images.dense_image(table.ragged(INDEX)[event], table.ragged(CHARGE)[event], SMALL)
        assert np.array_equal(image, dense[event])
    assert "images of 20 x 30, and the recipe's are 20 x 31" in problem(path, (20, 31))
    path.write_bytes(b"nonsense")
    assert "not a readable blosc2 file of images" in problem(path)


def test_arrays_that_do_not_fit(tmp_path: Path) -> None:
    path, dense = tmp_path / "a.h5", np.ones((2, *SMALL))
    assert "images of 20 x 30, and the recipe's are 20 x 31; set image.rows" in problem(
        write_images(path, dense), (20, 31)
    )
    assert "image 0: negative charge" in problem(write_images(path, -dense))
    dense[1, 3, 3] = np.nan
    assert "image 1: charge that is not finite" in problem(write_images(path, dense))
    assert "2 images and 3 labels" in problem(write_images(path, np.ones((2, *SMALL)), np.zeros(3)))
    assert "image 1: label 7; labels are 0 gamma" in problem(write_images(path, np.ones((2, *SMALL)), np.array([0, 7])))
    assert "not images (n, wires, ticks)" in problem(write_images(path, np.ones(SMALL)))
    assert "no images in it" in problem(write_images(path, np.ones((0, *SMALL))))


def test_generated_files_are_read_back(tmp_path: Path) -> None:
    ((path, _),) = events.write_events(3, 1, tmp_path, size=SMALL)
    (table,) = event_files.read_events(str(path), SMALL)
    assert len(table) == 3 and table.fixed("generator").tolist() == [events.VERSION] * 3
