"""Streams of records: numbered without gaps, also if a crash damaged the last line."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from clew.errors import RunError
from clew.runs import records
from clew.runs.records import KINDS, RecordWriter, read, read_reversed


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    """A stream with three records, in a folder that the writer made."""
    path = tmp_path / "records" / "rank-0.jsonl"
    add(path, 3)
    return path


def add(path: Path, count: int) -> None:
    with RecordWriter(path) as writer:
        for number in range(count):
            writer.write("checkpoint", epoch=number, step=number, file="last")


def numbers(path: Path, **options: int) -> list[int]:
    return [record["seq"] for record in read(path, **options)]


def test_records_are_numbered_timed_and_of_a_kind(stream: Path) -> None:
    first, *_ = records = list(read(stream))
    assert [record["seq"] for record in records] == [0, 1, 2]
    assert first["kind"] == "checkpoint"
    assert first["file"] == "last"
    assert records[0]["time"] <= records[2]["time"]


def test_numbers_continue_over_reopening(stream: Path) -> None:
    add(stream, 2)
    assert numbers(stream) == [0, 1, 2, 3, 4]


def test_readers_leave_out_a_torn_last_line(stream: Path) -> None:
    with stream.open("ab") as file:
        file.write(b'{"seq": 3, "kind": "st')
    assert numbers(stream) == [0, 1, 2]


def test_the_next_writer_removes_a_torn_last_line(stream: Path) -> None:
    with stream.open("ab") as file:
        file.write(b'{"seq": 3, "kind": "st')
    add(stream, 1)
    assert numbers(stream) == [0, 1, 2, 3]
    assert stream.read_bytes().count(b"\n") == 4


def test_a_stream_torn_in_its_first_line_starts_empty(stream: Path) -> None:
    os.truncate(stream, 10)
    assert numbers(stream) == []
    add(stream, 1)
    assert numbers(stream) == [0]


@pytest.mark.parametrize("damage", ["}{", "[]", "17", '{"kind": "end"}', '{"seq": "x"}', "\0\0\0"])
def test_a_damaged_line_in_the_middle_is_named(stream: Path, damage: str) -> None:
    lines = stream.read_text().splitlines()
    lines[1] = damage
    stream.write_text("\n".join(lines) + "\n")
    with pytest.raises(RunError, match=r"rank-0\.jsonl:2: damaged record"):
        numbers(stream)


def test_values_that_json_cannot_hold_become_null(tmp_path: Path) -> None:
    with RecordWriter(tmp_path / "s.jsonl") as writer:
        metrics = {"a": math.nan, "b": [1.5, math.inf], "c": (-math.inf,)}
        writer.write("validation", epoch=0, step=1, metrics=metrics, seconds=0.1)
    (record,) = read(tmp_path / "s.jsonl")
    assert record["metrics"] == {"a": None, "b": [1.5, None], "c": [None]}


def test_reading_after_a_record_gives_only_later_ones(stream: Path) -> None:
    assert numbers(stream, after=0) == [1, 2]
    assert numbers(stream, after=2) == []


def test_text_with_line_breaks_and_unicode_stays_one_record(tmp_path: Path) -> None:
    message = "first\nsecond\u2028third é"
    with RecordWriter(tmp_path / "s.jsonl") as writer:
        writer.write("end", status="failed", message=message)
    assert [record["message"] for record in read(tmp_path / "s.jsonl")] == [message]


@pytest.mark.parametrize("block", [1, 7, 64, 1 << 14])
@pytest.mark.parametrize("torn", ["", "{", '{"seq": 9, "kind": "end"' + " " * 99])
def test_reading_back_is_reading_turned_round(
    stream: Path, block: int, torn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "BLOCK", block)
    with RecordWriter(stream) as writer:
        writer.write("end", status="failed", message='"checkpoint" ' * 20)
    with stream.open("a") as file:
        file.write(torn)
    assert list(read_reversed(stream)) == list(read(stream))[::-1]
    assert [record["seq"] for record in read_reversed(stream, ("checkpoint",))] == [2, 1, 0]
    assert [record["seq"] for record in read_reversed(stream, ("end", "start"))] == [3]


def test_reading_back_a_stream_without_a_whole_line_gives_nothing(stream: Path) -> None:
    os.truncate(stream, 10)
    assert list(read_reversed(stream)) == []
    os.truncate(stream, 0)
    assert list(read_reversed(stream)) == []


def test_reading_back_stops_at_damage_and_not_before(stream: Path) -> None:
    lines = stream.read_text().splitlines()
    stream.write_text("\n".join([lines[0], "}{", lines[2]]) + "\n")
    back = read_reversed(stream)
    assert next(back)["seq"] == 2
    with pytest.raises(RunError, match=r"rank-0\.jsonl: damaged record .* in b'}{'"):
        next(back)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_record_without_its_facts_is_our_mistake(tmp_path: Path, kind: str) -> None:
    with RecordWriter(tmp_path / "s.jsonl") as writer, pytest.raises(AssertionError, match=f"a {kind} record needs"):
        writer.write(kind)
    assert numbers(tmp_path / "s.jsonl") == []


def test_an_unknown_kind_is_not_written(tmp_path: Path) -> None:
    with RecordWriter(tmp_path / "s.jsonl") as writer, pytest.raises((AssertionError, KeyError)):
        writer.write("stop", message="")
    assert numbers(tmp_path / "s.jsonl") == []
