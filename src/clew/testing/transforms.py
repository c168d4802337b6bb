"""The contract of transforms."""

from __future__ import annotations

import itertools
import pickle
from typing import ClassVar

import numpy as np
import pytest

from clew.core.config import to_data
from clew.data.table import Ragged, Table, concat
from clew.data.transforms import FittedTransform, Transform, fit
from clew.testing.suite import required
from clew.testing.tables import assert_same_table, columns_sharing_offsets


class TransformContract:
    """Tests of a transform. Subclass it, set `transform`, and return events in `events`.

    Example:
        >>> from clew import transforms
        >>> class TestMinMax(TransformContract):
        ...     transform = transforms.MinMax(columns=("pt",))
        ...
        ...     def events(self):
        ...         return Table({"pt": np.random.default_rng(1).normal(size=100)})
    """

    transform: ClassVar[Transform | None] = None
    """The transform, with its settings. One that is fitted has no numbers yet."""

    def events(self) -> Table:
        """Return some ten events or more that the transform accepts, with all columns that it needs."""
        raise NotImplementedError(f"{type(self).__name__} must define events() -> Table")

    def _transform(self) -> Transform:
        """Return the transform, fitted if it needs it."""
        transform: Transform = required(type(self), "transform", "MyTransform(column='pt')")
        return fit([transform], lambda: [self.events()])[0]

    def test_it_is_pure(self) -> None:
        events, before, transform = self.events(), self.events(), self._transform()
        assert_same_table(events, before)
        result = transform(events)
        assert_same_table(events, before)
        assert_same_table(transform(events), result)

    def test_chunks_give_the_result_of_the_whole(self) -> None:
        events, transform = self.events(), self._transform()
        third = len(events) // 3
        parts = [transform(part) for part in (events.slice(0, third), events.slice(third))]
        assert_same_table(concat(parts), transform(events))

    def test_no_events_give_no_events_with_the_same_columns(self) -> None:
        events, transform = self.events(), self._transform()
        nothing = transform(events.slice(0, 0))
        assert len(nothing) == 0
        assert nothing.schema == transform(events).schema

    def test_columns_of_the_same_items_still_share_their_offsets(self) -> None:
        events, result = self.events(), self._transform()(self.events())
        groups = columns_sharing_offsets(result)
        for group in columns_sharing_offsets(events):
            left = {name for name in group if name in result and isinstance(result[name], Ragged)}
            assert not left or any(left <= other for other in groups), f"{sorted(left)} do not share offsets any more"

    def test_its_settings_and_numbers_can_be_saved(self) -> None:
        transform = self._transform()
        again = type(transform).model_validate(to_data(transform))
        assert again == transform and pickle.loads(pickle.dumps(transform)) == transform
        assert_same_table(again(self.events()), transform(self.events()))

    @pytest.mark.parametrize("seed", range(5))
    def test_fitting_does_not_depend_on_the_order_of_chunks(self, seed: int) -> None:
        transform, events = required(type(self), "transform", "MyTransform(column='pt')"), self.events()
        if not isinstance(transform, FittedTransform):
            return
        assert transform.needs_fit, "set a transform without its numbers"
        edges = [0, 1, len(events) // 3, len(events) // 2, len(events)]
        chunks = [events.slice(start, stop) for start, stop in itertools.pairwise(edges)]
        parts = [pickle.loads(pickle.dumps(transform.measure(chunk))) for chunk in [*chunks, events.slice(0, 0)]]
        fitted = transform.fitted(parts)
        assert not fitted.needs_fit
        order = np.random.default_rng(seed).permutation(len(parts))
        shuffled = transform.fitted([parts[number] for number in order])
        assert to_data(shuffled) == to_data(fitted), "the fitted numbers must be the same bit by bit"
