"""The suite of transforms: each fault of a transform fails the test that is about it."""

from __future__ import annotations

from pathlib import Path

from tests.testing import failed_tests

SOURCE = '''
import numpy as np
from clew import Ragged, Table, transforms
from clew.testing import TransformContract


class Suite(TransformContract):
    transform = transforms.Standard(columns=("x",))

    def events(self):
        x = Ragged.from_lengths(np.arange(60.0), np.arange(30) % 5)
        return Table({"x": x, "y": x.share(x.values * 2)})


class TestCorrect(Suite):
    pass


class Changes(transforms.Transform):
    def __call__(self, events):
        events.ragged("x").values[:] += 1
        return events


class TestChanges(Suite):
    transform = Changes()


class Centres(transforms.Transform):
    """Depends on the other events of a chunk."""
    def __call__(self, events):
        x = events.ragged("x")
        return events.join({"x": x.share(x.values - (x.values.mean() if len(x.values) else 0))})


class TestCentres(Suite):
    transform = Centres()


class Unshares(transforms.Transform):
    def __call__(self, events):
        x = events.ragged("x")
        return events.join({"x": Ragged(x.values, x.offsets.copy())})


class TestUnshares(Suite):
    transform = Unshares()


class First(transforms.FittedTransform):
    """The number of the first chunk that has any."""
    number: float | None = None

    @property
    def needs_fit(self):
        return self.number is None

    def measure(self, events):
        return float(events.ragged("x").values.sum())

    def fitted(self, parts):
        return self.model_copy(update={"number": parts[0]})

    def __call__(self, events):
        return events


class TestFirst(Suite):
    transform = First()
'''


def test_each_fault_fails_its_test(tmp_path: Path) -> None:
    failed = failed_tests(tmp_path, SOURCE)
    assert "TestCorrect" not in failed
    assert "test_it_is_pure" in failed["TestChanges"]
    assert failed["TestCentres"] == {"test_chunks_give_the_result_of_the_whole"}
    assert failed["TestUnshares"] == {"test_columns_of_the_same_items_still_share_their_offsets"}
    assert failed["TestFirst"] == {"test_fitting_does_not_depend_on_the_order_of_chunks"}
