"""Images as lists of pixels: conversion from and to arrays, checks, shrinking."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from clew import Ragged, Table
from clew.errors import DataError
from clew.recipes.lartpc.columns import CHARGE, CLASSES, EVENT, INDEX, LABEL, SHAPE, VERTEX

Size = tuple[int, int]


def nonzero_pixels(
    image: NDArray[Any], size: Size, *, corner: Size = (0, 0)
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return index and charge of the nonzero pixels of an array (wires, ticks), in an image of `size`.

    The pixel `corner` of the array becomes the first pixel of the image. Pixels outside the image are dropped, and
    missing pixels are zero.
    """
    part = image[corner[0] : corner[0] + size[0], corner[1] : corner[1] + size[1]]
    wire, tick = np.nonzero(part)
    return (wire * size[1] + tick).astype(np.int32), part[wire, tick].astype(np.float32)


def dense_image(index: NDArray[np.int32], charge: NDArray[np.float32], size: Size) -> NDArray[np.float32]:
    """Return the image (wires, ticks) of an event."""
    image = np.zeros(size[0] * size[1], dtype=np.float32)
    image[index] = charge
    return image.reshape(size)


def check_images(events: Table, size: Size, *, max_pixels: int | None = None) -> Table:
    """Check images, and return the events unchanged.

    Args:
        events: The events.
        size: Wires and ticks that the images must have.
        max_pixels: Maximum number of pixels per event. Default: no limit.

    Raises:
        DataError: An image has another size, pixels outside of it or out of order, a charge that is not finite or not
            above 0, no pixels, too many pixels, or an unknown label. The message names the event.
    """
    index, charge = events.ragged(INDEX), events.ragged(CHARGE)
    _check_shape(events, size)
    values, charges = index.values, charge.values
    last = size[0] * size[1]
    _raise_for_pixel(
        events, index, ~np.isfinite(charges), lambda at: f"charge {charges[at]} in a pixel; charges must be finite"
    )
    _raise_for_pixel(
        events, index, charges <= 0, lambda at: f"charge {charges[at]:g} in a pixel; list those above 0 only"
    )
    _raise_for_pixel(
        events,
        index,
        (values < 0) | (values >= last),
        lambda at: f"pixel {values[at]} is outside an image of {size[0]} x {size[1]}",
    )
    not_increasing = (
        np.append(False, (np.diff(values) <= 0) & (np.diff(index.events) == 0)) if len(values) else values > 0
    )
    _raise_for_pixel(
        events,
        index,
        not_increasing,
        lambda at: f"pixel {values[at]} stands twice or out of order; indices must increase",
    )
    lengths = index.lengths
    if (lengths == 0).any():
        at = int(np.argmax(lengths == 0))
        hint = "leave such events out: transforms: [{kind: select, where: len(index) > 0}]"
        raise DataError(f"event {_event_number(events, at)}: no pixel has charge; {hint}")
    if max_pixels is not None and (lengths > max_pixels).any():
        at = int(np.argmax(lengths > max_pixels))
        raise DataError(
            f"event {_event_number(events, at)}: {lengths[at]:,} pixels have charge, more than the {max_pixels:,} that "
            "fit; raise image.max_pixels, or the threshold that the image was made with"
        )
    _check_labels(events)
    return events


def _check_labels(events: Table) -> None:
    if LABEL not in events:
        return
    label = events.fixed(LABEL)
    bad = np.flatnonzero((label < 0) | (label >= len(CLASSES)))
    if len(bad):
        labels = ", ".join(f"{place} {name}" for place, name in enumerate(CLASSES))
        raise DataError(f"event {_event_number(events, int(bad[0]))}: label {label[bad[0]]}; labels are {labels}")


def _check_shape(events: Table, size: Size) -> None:
    if SHAPE not in events or not len(events):
        return
    other = np.flatnonzero((events.fixed(SHAPE) != size).any(axis=1))
    if len(other):
        shape = events.fixed(SHAPE)[other[0]]
        raise DataError(
            f"event {_event_number(events, int(other[0]))}: an image of {shape[0]} x {shape[1]}, and the recipe's are "
            f"{size[0]} x {size[1]}; set image.rows and image.columns"
        )


def _raise_for_pixel(events: Table, items: Ragged, bad: NDArray[np.bool_], message: Any) -> None:
    if bad.any():
        at = int(np.argmax(bad))
        raise DataError(f"event {_event_number(events, int(items.events[at]))}: {message(at)}")


def _event_number(events: Table, place: int) -> int:
    return int(events.fixed(EVENT)[place]) if EVENT in events else place


def shrink_images(events: Table, size: Size, factor: int, *, output_size: Size | None = None) -> Table:
    """Shrink images by an integer factor: each square of pixels becomes one pixel with the sum of the charges.

    Args:
        events: The events.
        size: Wires and ticks of the images.
        factor: Number of wires and of ticks per new pixel. The new numbers of wires and ticks are rounded up.
        output_size: Size of the new images, which the shrunk ones fill from the first corner. Default: the shrunk size.
    """
    if factor == 1:
        return events
    index, charge = events.ragged(INDEX), events.ragged(CHARGE)
    rows, columns = output_size or (-(-size[0] // factor), -(-size[1] // factor))
    wire, tick = np.divmod(index.values.astype(np.int64), size[1])
    key = index.events * (rows * columns) + wire // factor * columns + tick // factor
    cells, where = np.unique(key, return_inverse=True)
    total = np.bincount(where, charge.values, minlength=len(cells)).astype(np.float32)
    lengths = np.bincount(cells // (rows * columns), minlength=len(events))
    new = Ragged.from_lengths((cells % (rows * columns)).astype(np.int32), lengths)
    changed: dict[str, Any] = {INDEX: new, CHARGE: new.share(total)}
    if SHAPE in events:
        changed[SHAPE] = np.tile(np.array([rows, columns], dtype=np.int32), (len(events), 1))
    if VERTEX in events:
        changed[VERTEX] = events.fixed(VERTEX) / np.float32(factor)
    return events.drop(INDEX, CHARGE).join(changed, units={CHARGE: "ke"})
