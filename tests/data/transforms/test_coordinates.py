"""Cartesian and cylindrical coordinates."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clew.core.config import to_data
from clew.data.table import Ragged, Table
from clew.data.transforms import Cartesian, Cylindrical
from clew.errors import DataError

POINTS = st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(-1e3, 1e3)), max_size=8)


def hits(points: list[tuple[float, float]]) -> Table:
    x = Ragged(np.array([point[0] for point in points]), [0, len(points), len(points)])
    return Table({"x": x, "y": x.share(np.array([point[1] for point in points]))}, units={"x": "mm", "y": "mm"})


def test_known_points_have_known_coordinates() -> None:
    table = Cylindrical()(hits([(3.0, 4.0), (0.0, 2.0), (-1.0, 0.0), (0.0, -1.0)]))
    assert table.ragged("r").values.tolist() == [5.0, 2.0, 1.0, 1.0]
    assert table.ragged("phi").values == pytest.approx([np.arctan2(4, 3), np.pi / 2, np.pi, -np.pi / 2])
    assert table.units == {"x": "mm", "y": "mm", "r": "mm", "phi": "rad"}


@settings(max_examples=80, deadline=None)
@given(POINTS)
def test_there_and_back_gives_the_same_point(points: list[tuple[float, float]]) -> None:
    table = hits(points)
    there = Cylindrical(keep=False)(table)
    back = Cartesian(keep=False)(there)
    assert (set(there), set(back)) == ({"r", "phi"}, {"x", "y"})
    for name in ("x", "y"):
        np.testing.assert_allclose(back.ragged(name).values, table.ragged(name).values, atol=1e-9)
    assert back.units == table.units


@settings(max_examples=60, deadline=None)
@given(POINTS)
def test_r_is_never_negative_and_phi_within_half_a_turn(points: list[tuple[float, float]]) -> None:
    table = Cylindrical()(hits(points))
    assert (table.ragged("r").values >= 0).all()
    assert (np.abs(table.ragged("phi").values) <= np.pi).all()


def test_a_point_from_r_and_phi_has_known_coordinates() -> None:
    r = Ragged([2.0], [0, 1])
    table = Cartesian()(Table({"r": r, "phi": r.share([np.pi / 6])}, units={"r": "cm"}))
    assert table.ragged("x").values == pytest.approx([np.sqrt(3)])
    assert table.ragged("y").values == pytest.approx([1.0])
    assert table.units == {"r": "cm", "x": "cm", "y": "cm"}


@pytest.mark.parametrize("keep", [True, False])
def test_keep_says_whether_the_old_columns_stay(keep: bool) -> None:
    there = Cylindrical(keep=keep)(hits([(1.0, 1.0)]))
    assert ("x" in there, "y" in there) == (keep, keep)
    back = Cartesian(keep=keep)(there)
    assert ("r" in back, "phi" in back) == (keep, keep)


def test_new_columns_describe_the_same_hits() -> None:
    table = hits([(1.0, 2.0)])
    for column in Cartesian()(Cylindrical()(table)).values():
        assert isinstance(column, Ragged)
        assert column.offsets is table.ragged("x").offsets


def test_pointers_at_the_hits_survive_a_change_of_coordinates() -> None:
    table = hits([(1.0, 2.0), (3.0, 4.0)])
    table = table.join({"edge": Ragged([[0, 1]], [0, 1, 1])}, index_of={"edge": "x"})
    assert Cylindrical(keep=False)(table).index_of == {"edge": "r"}


def test_missing_or_fixed_coordinates_are_named() -> None:
    with pytest.raises(DataError, match="no column 'y'"):
        Cylindrical()(hits([]).drop("y"))
    with pytest.raises(DataError, match="column 'r' has one value per event"):
        Cartesian()(Table({"r": [1.0], "phi": [1.0]}))


def test_written_out_and_read_back_they_are_equal() -> None:
    assert Cylindrical.model_validate(to_data(Cylindrical(keep=False))) == Cylindrical(keep=False)
    assert Cartesian.model_validate(to_data(Cartesian())) == Cartesian()
