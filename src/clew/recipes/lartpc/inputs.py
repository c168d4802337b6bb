"""What an event must be for the network: pixels within the image, once each, with a charge that is a number."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from clew import Ragged, Table
from clew.errors import DataError
from clew.recipes.lartpc.columns import CHARGE, EVENT, INDEX

if TYPE_CHECKING:
    from clew.recipes.lartpc.settings import Image


def checked(events: Table, image: Image) -> tuple[Ragged, Ragged]:
    """Places (int32) and charges (float32) of the pixels of all events.

    Raises:
        DataError: an event is empty, has more pixels than fit or one outside the image, has one twice or out of order,
            or a charge is negative or not a number.
    """
    index, charge = events.ragged(INDEX), events.ragged(CHARGE)
    if not np.array_equal(index.offsets, charge.offsets):
        raise DataError(f"columns '{INDEX}' and '{CHARGE}' do not have the same pixels in every event")
    _counted(events, index, image)
    _placed(events, index, image)
    good = np.isfinite(charge.values) & (charge.values >= 0)
    if not good.all():
        first = int(np.argmin(good))
        raise DataError(
            f"{_name(events, index, first)}: pixel {index.values[first]} has the charge {charge.values[first]}; "
            "charges are numbers of 0 or more: leave such pixels out, or subtract the pedestal first"
        )
    places = Ragged(index.values.astype(np.int32), index.offsets)
    return places, places.share(charge.values.astype(np.float32))


def _counted(events: Table, index: Ragged, image: Image) -> None:
    lengths = index.lengths
    if (lengths == 0).any():
        empty = _label(events, int(np.argmax(lengths == 0)))
        raise DataError(f"{empty} has no pixel, so there is nothing to tell it by: leave it out")
    if (lengths > image.most).any():
        full = int(np.argmax(lengths))
        raise DataError(
            f"{_label(events, full)} has {lengths[full]:,} pixels, more than image.most, {image.most:,}: "
            "suppress noise, or raise it"
        )


def _placed(events: Table, index: Ragged, image: Image) -> None:
    places = index.values
    if not np.issubdtype(places.dtype, np.integer):
        raise DataError(f"column '{INDEX}' holds {places.dtype}, not whole numbers: wire * {image.ticks} + tick")
    outside = (places < 0) | (places >= image.wires * image.ticks)
    if outside.any():
        first = int(np.argmax(outside))
        raise DataError(
            f"{_name(events, index, first)}: pixel {places[first]} lies outside the image of {image.wires} x "
            f"{image.ticks}; is its size another? Set image.wires and image.ticks to what the file has"
        )
    later = np.diff(places.astype(np.int64)) <= 0
    later[index.offsets[1:-1] - 1] = False
    if later.any():
        first = int(np.argmax(later)) + 1
        raise DataError(
            f"{_name(events, index, first)}: pixel {places[first]} follows {places[first - 1]}; "
            "an event lists each pixel once, in rising order"
        )


def _name(events: Table, index: Ragged, pixel: int) -> str:
    return _label(events, int(np.searchsorted(index.offsets, pixel, side="right")) - 1)


def _label(events: Table, place: int) -> str:
    number: NDArray[np.int64] | None = events.fixed(EVENT) if EVENT in events else None
    return f"event {place if number is None else number[place]}"
