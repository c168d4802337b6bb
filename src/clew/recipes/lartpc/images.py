"""Images as lists of pixels: from arrays, to arrays, checked, shrunk."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from clew import Ragged, Table
from clew.errors import DataError
from clew.recipes.lartpc.columns import CHARGE, CLASSES, EVENT, INDEX, LABEL, SHAPE, VERTEX

Size = tuple[int, int]


def pixels(image: NDArray[Any], size: Size, *, corner: Size = (0, 0)) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """The pixels of an array (wires, ticks) that are not zero, as index and charge in an image of `size`.

    The array lies with its pixel `corner` at the image's first; what is outside is cut off, what is missing is zero.
    """
    part = image[corner[0] : corner[0] + size[0], corner[1] : corner[1] + size[1]]
    wire, tick = np.nonzero(part)
    return (wire * size[1] + tick).astype(np.int32), part[wire, tick].astype(np.float32)


def dense(index: NDArray[np.int32], charge: NDArray[np.float32], size: Size) -> NDArray[np.float32]:
    """The image (wires, ticks) of an event."""
    image = np.zeros(size[0] * size[1], dtype=np.float32)
    image[index] = charge
    return image.reshape(size)


def checked(events: Table, size: Size, *, most: int | None = None) -> Table:
    """The events as they are, if their images are fit to learn from.

    Raises:
        DataError: one has another size, pixels outside or out of order, charge that is not a number or not above 0, no
            pixels at all, or more than `most`, or a label that is none; the line names the event.
    """
    index, charge = events.ragged(INDEX), events.ragged(CHARGE)
    _check_shape(events, size)
    values, amount = index.values, charge.values
    last = size[0] * size[1]
    _refuse(events, index, ~np.isfinite(amount), lambda at: f"charge {amount[at]} in a pixel; charges must be finite")
    _refuse(events, index, amount <= 0, lambda at: f"charge {amount[at]:g} in a pixel; list those above 0 only")
    _refuse(
        events,
        index,
        (values < 0) | (values >= last),
        lambda at: f"pixel {values[at]} is outside an image of {size[0]} x {size[1]}",
    )
    falls = np.append(False, (np.diff(values) <= 0) & (np.diff(index.events) == 0)) if len(values) else values > 0
    _refuse(events, index, falls, lambda at: f"pixel {values[at]} stands twice or out of order; indices must increase")
    lengths = index.lengths
    if (lengths == 0).any():
        at = int(np.argmax(lengths == 0))
        hint = "leave such events out: transforms: [{kind: select, where: len(index) > 0}]"
        raise DataError(f"event {_number(events, at)}: no pixel has charge; {hint}")
    if most is not None and (lengths > most).any():
        at = int(np.argmax(lengths > most))
        raise DataError(
            f"event {_number(events, at)}: {lengths[at]:,} pixels have charge, more than the {most:,} that fit; raise "
            "image.most, or the threshold that the image was made with"
        )
    _check_labels(events)
    return events


def _check_labels(events: Table) -> None:
    if LABEL not in events:
        return
    label = events.fixed(LABEL)
    bad = np.flatnonzero((label < 0) | (label >= len(CLASSES)))
    if len(bad):
        known = ", ".join(f"{place} {name}" for place, name in enumerate(CLASSES))
        raise DataError(f"event {_number(events, int(bad[0]))}: label {label[bad[0]]}; labels are {known}")


def _check_shape(events: Table, size: Size) -> None:
    if SHAPE not in events or not len(events):
        return
    other = np.flatnonzero((events.fixed(SHAPE) != size).any(axis=1))
    if len(other):
        found = events.fixed(SHAPE)[other[0]]
        raise DataError(
            f"event {_number(events, int(other[0]))}: an image of {found[0]} x {found[1]}, and the recipe's are "
            f"{size[0]} x {size[1]}; set image.rows and image.columns"
        )


def _refuse(events: Table, items: Ragged, bad: NDArray[np.bool_], tell: Any) -> None:
    if bad.any():
        at = int(np.argmax(bad))
        raise DataError(f"event {_number(events, int(items.events[at]))}: {tell(at)}")


def _number(events: Table, place: int) -> int:
    return int(events.fixed(EVENT)[place]) if EVENT in events else place


def shrunk(events: Table, size: Size, by: int, *, within: Size | None = None) -> Table:
    """Images of `by` times fewer wires and ticks (rounded up), the charges of each square added up; they lie in the
    first corner of images of the size `within`, where that is given."""
    if by == 1:
        return events
    index, charge = events.ragged(INDEX), events.ragged(CHARGE)
    rows, columns = within or (-(-size[0] // by), -(-size[1] // by))
    wire, tick = np.divmod(index.values.astype(np.int64), size[1])
    key = index.events * (rows * columns) + wire // by * columns + tick // by
    cells, where = np.unique(key, return_inverse=True)
    total = np.bincount(where, charge.values, minlength=len(cells)).astype(np.float32)
    lengths = np.bincount(cells // (rows * columns), minlength=len(events))
    new = Ragged.from_lengths((cells % (rows * columns)).astype(np.int32), lengths)
    changed: dict[str, Any] = {INDEX: new, CHARGE: new.share(total)}
    if SHAPE in events:
        changed[SHAPE] = np.tile(np.array([rows, columns], dtype=np.int32), (len(events), 1))
    if VERTEX in events:
        changed[VERTEX] = events.fixed(VERTEX) / np.float32(by)
    return events.drop(INDEX, CHARGE).join(changed, units={CHARGE: "ke"})
