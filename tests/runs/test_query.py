"""The query language: what matches, and messages with positions."""

from __future__ import annotations

from typing import Any

import pytest

from clew.runs.query import QueryError, check_names, parse_query, resolve_name

RUN: dict[str, Any] = {
    "name": "tracks-7",
    "state": "finished",
    "recipe": "tracking",
    "tag": ["paper", "new"],
    "train.optimizer.lr": 0.001,
    "train.strategy": "allreduce",
    "train.compile": True,
    "val/efficiency": 0.95,
    "test/efficiency": 0.9,
}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "lr < 0.01 and efficiency > 0.9 and tag:paper",
        "lr<0.01 efficiency>=0.95",
        "test/efficiency = 0.9",
        "state = failed or (lr = 1e-3 and not tag:old)",
        "strategy:reduce and strategy != sharded",
        "tracks TRACKING",
        "compile = true",
        "name = 'tracks-7'",
        "not missing > 3",
    ],
)
def test_a_run_matches(text: str) -> None:
    assert parse_query(text).matches(RUN)


@pytest.mark.parametrize(
    "text", ["lr > 0.01", "tag:old", "missing > 3", "not tag:paper", "other", "efficiency < 0.95 or state=failed"]
)
def test_a_run_does_not_match(text: str) -> None:
    assert not parse_query(text).matches(RUN)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr <", "lr <: a value is missing at character 5"),
        ("lr < high", "lr < high: '<' needs a number, not 'high' at character 6"),
        ("(a or b", "(a or b: ')' is missing at character 8"),
        ("a and", "a and: a condition is missing at character 6"),
        ("< 3", "< 3: a name is expected before '<' at character 1"),
        ("a ) b", "a ) b: ')' is not expected at character 3"),
        ('name = "open', "name = \"open: '\"' is not understood at character 8"),
        ("lr < < 3", "lr < < 3: a value is expected, not '<' at character 6"),
    ],
)
def test_a_mistake_is_one_line_with_its_position(text: str, message: str) -> None:
    with pytest.raises(QueryError) as error:
        parse_query(text)
    assert str(error.value) == message


def test_an_unknown_name_is_reported_with_the_nearest() -> None:
    text = "tag:paper eficiency > 1"
    with pytest.raises(QueryError, match=r"no run has 'eficiency' \(at character 11\).*efficiency"):
        check_names(parse_query(text), text, RUN)
    assert resolve_name("efficiency", RUN) == "val/efficiency"
    assert resolve_name("lr", RUN) == "train.optimizer.lr"


def test_long_and_deep_queries_are_refused() -> None:
    for text in ("a " * 60, "(" * 60 + "a" + ")" * 60, "x" * 3000):
        with pytest.raises(QueryError):
            parse_query(text)
