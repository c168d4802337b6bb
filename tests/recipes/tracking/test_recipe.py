"""The recipe reads common text files, names mistakes, and makes samples of the right types."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from clew import Table, concat, settings
from clew.errors import DataError
from clew.recipes.tracking import Tracking
from clew.recipes.tracking.simulate_bes3 import simulate
from tests.recipes.tracking import generated

ROOT = Path(__file__).parents[3]
GOOD = """# event x y z station track

3 1.5e+01 -2.0 3 0 -1   # the first
1\t80.0\t1E1\t-3.25\t1\t7
  # a comment of its own
3 4 5 6 2 0
1 8 9 1.0 2 7
"""


def read(folder: Path, text: str) -> Table:
    path = folder / "events.txt"
    path.write_text(text)
    return concat(list(Tracking().read(str(path))))


def test_comments_blank_lines_and_unsorted_events(tmp_path: Path) -> None:
    events = read(tmp_path, GOOD)
    assert events.fixed("event").tolist() == [1, 3]
    assert [x.tolist() for x in events.ragged("x")] == [[80.0, 8.0], [15.0, 4.0]]
    assert [y.tolist() for y in events.ragged("y")] == [[10.0, 9.0], [-2.0, 5.0]]
    assert [s.tolist() for s in events.ragged("station")] == [[1, 2], [0, 2]]
    assert [t.tolist() for t in events.ragged("track")] == [[7, 7], [-1, 0]]
    assert events.units["z"] == "mm"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# header\n1 2 3 4 0 0\n\n1 2 3 4 0\n", "line 4: 5 columns, expected 6: event x y z station track"),
        ("1 2 3 4 0 0\n1 2 3 4 0 0 9\n", "line 2: 7 columns, expected 6"),
        ("1 2 3 4 0\n1 2 3 4 0\n", "line 1: 5 columns, expected 6: event x y z station track"),
        ("1 2 3 4 0 0\n1 2 wide 4 0 0\n", "line 2: y is 'wide', not a number"),
        ("1 2 3 4 0 0\n1 2 3 4 0.5 0\n", "station is 0.5, it must be a whole number"),
        ("1 2 3 4 0 nan\n", "track is nan"),
        ("# nothing\n\n", "no events in it"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError) as caught:
        read(tmp_path, text)
    assert message in str(caught.value)


def test_a_binary_file_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "events.txt"
    path.write_bytes(bytes(range(256)))
    with pytest.raises(DataError) as caught:
        list(Tracking().read(str(path)))
    assert len(str(caught.value).splitlines()) == 1


def test_what_is_generated_can_be_read_back(tmp_path: Path) -> None:
    files = list(Tracking().generate(20, 5, tmp_path))
    assert [(path.name.startswith("synthetic"), count) for path, count in files] == [(True, 20)]
    events, hits = concat(list(Tracking().read(str(files[0][0])))), simulate(20, 5)
    np.testing.assert_array_equal(events.ragged("track").values, hits.track)
    np.testing.assert_array_equal(events.ragged("station").values, hits.station)
    for name in "xyz":
        np.testing.assert_allclose(events.ragged(name).values, getattr(hits, name), rtol=1e-6)


def test_a_saved_table_can_be_read_instead_of_text(tmp_path: Path) -> None:
    events = read(tmp_path, GOOD)
    events.save(tmp_path / "events.h5")
    again = concat(list(Tracking().read(str(tmp_path / "events.h5"))))
    np.testing.assert_array_equal(again.ragged("x").values, events.ragged("x").values)


def test_samples_hold_the_graph_and_the_hits() -> None:
    samples = Tracking().prepare(generated(5, seed=2))
    kinds = {name: (field.dtype, field.shape, field.index_of) for name, field in samples.schema.items()}
    assert [kinds[name] for name in "xyz"] == [("<f4", (), "")] * 3
    assert kinds["node"] == ("<f4", (5,), "")
    assert kinds["node_hits"] == ("<i4", (2,), "x")
    assert kinds["edge"] == ("<i4", (2,), "node")
    assert kinds["label"] == ("|u1", (), "")


def test_events_prepared_together_are_those_prepared_alone() -> None:
    events = generated(6, seed=2)
    together = Tracking().prepare(events)
    alone = concat([Tracking().prepare(events.slice(event, event + 1)) for event in range(6)])
    for name in ("node", "node_hits", "edge", "label"):
        np.testing.assert_array_equal(together.ragged(name).offsets, alone.ragged(name).offsets)
        np.testing.assert_array_equal(together.ragged(name).values, alone.ragged(name).values)


def test_a_station_number_too_large_for_any_detector_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="a hit has station 65536"):
        Tracking().prepare(read(tmp_path, "1 2 3 4 65536 0\n"))


def test_trackml_events_have_the_barrel_as_stations(tmp_path: Path) -> None:
    rows = ("1,32,0,1,8,2,1", "2,72,1,2,8,4,1", "3,116,1,3,8,6,1", "4,1020,5,6,17,4,1", "5,9,9,900,9,2,1")
    hits = "\n".join(["hit_id,x,y,z,volume_id,layer_id,module_id", *rows, ""])
    truth = "hit_id,particle_id,tx,ty,tz,tpx,tpy,tpz,weight\n"
    truth += "".join(f"{hit},{1 << 52 | hit // 3 << 40 if hit < 4 else 0},0,0,0,3,4,5,0.25\n" for hit in range(1, 6))
    (tmp_path / "event000001000-hits.csv").write_text(hits)
    (tmp_path / "event000001000-truth.csv").write_text(truth)
    recipe = settings.load_settings("hitgraph", ["detector.name=trackml", "edges.turn_cut=0.001"]).recipe
    samples = recipe.prepare(concat(list(recipe.read(str(tmp_path / "event000001000-hits.csv")))))
    assert samples.ragged("station")[0].tolist() == [0, 1, 2, 9]
    assert samples.ragged("track")[0].tolist() == [0, 0, 1, -1]  # ids that agree in their last 32 bits
    assert (samples.ragged("link")[0].tolist(), samples.ragged("label")[0].tolist()) == ([[0, 1], [1, 2]], [1, 0])
    assert (samples.ragged("hit_weight")[0].tolist(), samples.ragged("pz")[0].tolist()) == ([0.25] * 4, [5] * 4)
