"""Lists of all verbs: sorted, with chosen columns, as JSON; and what `clew` alone prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clew.cli.listing import print_list
from clew.cli.text_table import Column, fit
from clew.errors import ConfigError
from tests.cli import clew, done

_ROWS: list[dict[str, Any]] = [
    {"name": "b", "size": 2.5},
    {"name": "a", "size": 10.0, "more": ["x", "y"]},
    {"name": "c"},
]


def test_a_list_is_sorted_has_chosen_columns_and_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    print_list(_ROWS, ("name", "size"), sort="-size")
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["name", "a", "b", "c"]
    print_list(_ROWS, ("name", "size"), sort="name", chosen="more,name")
    assert capsys.readouterr().out.splitlines()[:2] == ["more  name", "x, y  a"]
    print_list(_ROWS, ("name",), sort="name", as_json=True)
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == ["a", "b", "c"]


@pytest.mark.parametrize(("option", "sort", "chosen"), [("--sort", "-siez", ""), ("--columns", "", "siez")])
def test_an_unknown_column_is_one_line(option: str, sort: str, chosen: str) -> None:
    with pytest.raises(ConfigError, match=f"{option} siez: no such column; did you mean 'size'?"):
        print_list(_ROWS, ("name", "size"), sort=sort, chosen=chosen)


def test_states_have_colours_in_a_terminal_only() -> None:
    column = Column("state", ["failed", "finished"])
    assert fit([column], width=80) == ["state", "failed", "finished"]
    assert fit([column], width=80, colour=True)[1] == "\x1b[31mfailed  \x1b[0m"


@pytest.mark.parametrize(
    "verb", [("site", "list"), ("site", "jobs"), ("cache", "list"), ("cache", "size"), ("runs", "list")]
)
def test_every_list_is_json_for_scripts(verb: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLEW_CONFIG", str(tmp_path / "config"))
    monkeypatch.setenv("CLEW_CACHE", str(tmp_path / "cache"))
    assert json.loads(done(*verb, "--json")) == []


def test_clew_alone_greets_and_names_the_next_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLEW_SERVER", "")
    outcome = clew()
    assert outcome.code == 0 and "clew demo" in outcome.out and "--help" in outcome.out
    (tmp_path / "runs" / "first").mkdir(parents=True)
    (tmp_path / "runs" / "first" / "config.yaml").write_text("recipe: tracking\n")
    assert "runs show runs/first" in clew().out
