"""Lists of pixels, and the checks of their content."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from clew import Ragged, Table
from clew.errors import DataError
from clew.recipes.lartpc import images
from clew.recipes.lartpc.columns import CHARGE, EVENT, INDEX, SHAPE, VERTEX

SIZE = (6, 8)


def table(index: list[list[int]], charge: list[list[float]], **more: Any) -> Table:
    places = Ragged.from_lists([np.array(each) for each in index], dtype=np.int32)
    return Table(
        {
            EVENT: np.arange(10, 10 + len(index)),
            INDEX: places,
            CHARGE: places.share(np.concatenate([np.array(each, dtype=np.float32) for each in charge])),
            **more,
        }
    )


@pytest.mark.parametrize(
    ("index", "charge", "message"),
    [
        ([[1], [3, 4]], [[1], [1, np.nan]], "event 11: charge nan in a pixel"),
        ([[1], [3, 4]], [[1], [1, np.inf]], "event 11: charge inf in a pixel"),
        ([[1], [3, 4]], [[1], [1, -2]], "event 11: charge -2 in a pixel"),
        ([[1, 48]], [[1, 1]], "event 10: pixel 48 is outside an image of 6 x 8"),
        ([[-1, 4]], [[1, 1]], "event 10: pixel -1 is outside"),
        ([[1], [4, 4]], [[1], [1, 1]], "event 11: pixel 4 stands twice"),
        ([[5, 4]], [[1, 1]], "event 10: pixel 4 stands twice or out of order"),
        ([[1], []], [[1], []], "event 11: no pixel has charge; leave such events out"),
        ([[1], [1, 2, 3, 4]], [[1], [1, 1, 1, 1]], "event 11: 4 pixels have charge, more than the 3 that fit"),
    ],
)
def test_images_that_are_refused(index: list[list[int]], charge: list[list[float]], message: str) -> None:
    with pytest.raises(DataError, match=message):
        images.check_images(table(index, charge), SIZE, max_pixels=3)


def test_an_unknown_label_is_refused() -> None:
    with pytest.raises(DataError, match="event 10: label 5; labels are 0 gamma"):
        images.check_images(table([[1]], [[1]], label=np.array([5])), SIZE)


def test_an_image_of_another_size() -> None:
    events = table([[1]], [[1]], **{SHAPE: np.array([[60, 80]])})
    with pytest.raises(DataError, match="event 10: an image of 60 x 80, and the recipe's are 6 x 8"):
        images.check_images(events, SIZE)


def test_good_images_pass() -> None:
    events = table([[0, 47], [3], [2, 3]], [[1, 2], [3], [4, 5]], **{SHAPE: np.tile(SIZE, (3, 1))})
    assert images.check_images(events, SIZE, max_pixels=2) is events


def test_pixels_and_back() -> None:
    image = np.random.default_rng(1).poisson(0.2, SIZE).astype(np.float32)
    index, charge = images.nonzero_pixels(image, SIZE)
    assert np.array_equal(images.dense_image(index, charge, SIZE), image)


def test_frames_are_cut_and_filled() -> None:
    image = np.arange(1, 31, dtype=np.float32).reshape(3, 10)
    index, charge = images.nonzero_pixels(image, SIZE, corner=(1, 4))
    expected = np.zeros(SIZE, dtype=np.float32)
    expected[:2, :6] = image[1:, 4:]
    assert np.array_equal(images.dense_image(index, charge, SIZE), expected)


@pytest.mark.parametrize("by", [1, 2, 5])
def test_shrinking_adds_charges_up(by: int) -> None:
    rng = np.random.default_rng(1)
    dense = [rng.poisson(0.3, SIZE).astype(np.float32) + np.eye(*SIZE, dtype=np.float32) for _ in range(3)]
    pixels = [images.nonzero_pixels(image, SIZE) for image in dense]
    vertex = np.array([[4.0, 2.0]] * 3, dtype=np.float32)
    events = table([each.tolist() for each, _ in pixels], [each.tolist() for _, each in pixels], **{VERTEX: vertex})
    small = images.shrink_images(events, SIZE, by)
    rows, columns = -(-SIZE[0] // by), -(-SIZE[1] // by)
    for place, image in enumerate(dense):
        padded = np.zeros((rows * by, columns * by), dtype=np.float32)
        padded[: SIZE[0], : SIZE[1]] = image
        shrunk = images.dense_image(small.ragged(INDEX)[place], small.ragged(CHARGE)[place], (rows, columns))
        assert np.array_equal(shrunk, padded.reshape(rows, by, columns, by).sum(axis=(1, 3)))
    assert small.fixed(VERTEX)[0].tolist() == pytest.approx([4.0 / by, 2.0 / by])
    assert images.check_images(small, (rows, columns)) is small
