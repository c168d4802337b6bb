"""TrackML events: hits and truth joined."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from clew import readers
from clew.data.prepare.inputs import FileHashes, RelatedFiles, find_sources
from clew.data.prepare.stage_cache import StageCache
from clew.data.readers.trackml import TrackMLReader

from . import lists, problem, whole

HITS = "hit_id,x,y,z,volume_id,layer_id,module_id\n1,-64.5,-7.25,-1502.5,7,2,1\n3,1,2,3,8,4,5\n2,4,5,6,9,6,7\n"
TRUTH = (
    "hit_id,particle_id,tx,ty,tz,tpx,tpy,tpz,weight\n"
    "2,0,4,5,6,-1,-2,-3,0\n1,4503668346847232,-64.4,-7.2,-1502.4,.25,.5,.75,9.8e-06\n3,9223372036854775807,1,2,3,1,1,1,.5\n"
)


@pytest.fixture
def hits(tmp_path: Path) -> Path:
    """One event with truth, in another order."""
    (tmp_path / "event000001000-hits.csv").write_text(HITS)
    (tmp_path / "event000001000-truth.csv").write_text(TRUTH)
    return tmp_path / "event000001000-hits.csv"


def test_truth_is_brought_into_the_order_of_the_hits(hits: Path) -> None:
    table = whole(hits)
    assert (len(table), table.fixed("event").tolist()) == (1, [1000])
    assert lists(table["hit_id"]) == [[1, 3, 2]]
    assert lists(table["tpx"]) == [[0.25, 1, -1]]
    assert lists(table["hit_weight"]) == [[9.8e-06, 0.5, 0]]


def test_noise_is_minus_one_and_other_ids_keep_all_their_digits(hits: Path) -> None:
    assert lists(whole(hits)["track"]) == [[4503668346847232, 2**63 - 1, -1]]


def test_columns_and_units_are_declared(hits: Path) -> None:
    table = whole(hits)
    assert table.schema == TrackMLReader().declared_schema()
    assert (table.units["x"], table.units["tz"], table.units["tpx"]) == ("mm", "mm", "GeV")


def test_hits_without_truth_are_noise(hits: Path) -> None:
    with_truth = whole(hits)
    hits.with_name("event000001000-truth.csv").unlink()
    table = whole(hits)
    assert lists(table["track"]) == [[-1, -1, -1]]
    assert table.schema == with_truth.schema


def test_columns_that_are_not_known_are_left_out(hits: Path) -> None:
    before = whole(hits)
    hits.write_text("\n".join(f"{line},7" if n else f"{line},ch0" for n, line in enumerate(HITS.splitlines())))
    assert list(whole(hits)) == list(before)


@pytest.mark.parametrize("packed", [("hits",), ("truth",), ("hits", "truth")])
def test_either_file_may_be_packed(hits: Path, packed: tuple[str, ...]) -> None:
    before = whole(hits)
    for name in packed:
        path = hits.with_name(f"event000001000-{name}.csv")
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    table = whole(next(hits.parent.glob("*hits*")))
    assert table.schema == before.schema and lists(table["track"]) == lists(before["track"])


def test_an_event_without_hits_is_an_event(hits: Path) -> None:
    hits.write_text(HITS.splitlines()[0] + "\n")
    assert lists(whole(hits)["track"]) == [[]]


def test_a_change_of_the_truth_changes_the_content_hash(hits: Path, tmp_path: Path) -> None:
    def sources() -> list[tuple[str, str]]:
        reader = TrackMLReader()
        sources_of_file = find_sources(
            [str(hits.parent)],
            FileHashes(StageCache(tmp_path / "cache"), trust=False),
            lambda location: RelatedFiles(reader.companion_files(location), reader.ignored_files(location)),
        )
        return [(source.location, source.sha256) for source in sources_of_file]

    hits.with_name("event000001000-cells.csv").write_text("hit_id,ch0,ch1,value\n")
    before = sources()
    assert [location for location, _ in before] == [str(hits)]
    hits.with_name("event000001000-truth.csv").write_text(TRUTH.replace("9.8e-06", "9.9e-06"))
    assert sources() != before


@pytest.mark.parametrize("folder", ["a[1]", "all-hits.csv", "two words"])
def test_truth_is_found_in_folders_of_any_name(hits: Path, folder: str) -> None:
    inner = hits.parent / folder
    inner.mkdir()
    for path in (hits, hits.with_name("event000001000-truth.csv")):
        path.rename(inner / path.name)
    assert TrackMLReader().companion_files(str(inner / hits.name)) == [str(inner / "event000001000-truth.csv")]


def test_mistakes_are_reported_with_their_place(hits: Path) -> None:
    hits.write_text(HITS.replace("-1502.5", "word"))
    assert "column #3" in problem(hits) and "'word'" in problem(hits)
    hits.write_text(HITS.replace("layer_id", "layer"))
    assert "Column 'layer_id'" in problem(hits)
    hits.write_text(HITS)
    truth = hits.with_name("event000001000-truth.csv")
    truth.write_text(TRUTH.replace("\n3,", "\n4,"))
    assert problem(hits) == "event000001000-truth.csv does not have hit 3"
    truth.write_text(TRUTH.replace("weight", "w"))
    assert problem(hits).startswith("event000001000-truth.csv: Column 'weight'")


def test_other_names_are_other_files(tmp_path: Path) -> None:
    (tmp_path / "my-hits.csv").write_text(HITS)
    assert readers.kind_of("my-hits.csv") == "text"
    assert problem(tmp_path / "my-hits.csv", "trackml") == "a TrackML event is named eventNNN-hits.csv"
