"""The pages of "Start": commands and code of "Ten minutes" run; messages of "Troubleshooting" are those of the code."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import clew
from clew.cli.main import command
from tests.cli import done
from tests.test_docs import ROOT, _blocks

START = ROOT / "docs" / "start"
FROM_ELSEWHERE = ("input should be a valid dictionary",)
"""Messages of pydantic, which clew passes on."""


@pytest.mark.long
@pytest.mark.timeout(700)
def test_ten_minutes_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = START / "ten-minutes.md"
    Path("study.yaml").write_text(_blocks(page, "yaml")[0])
    lines = [shlex.split(line) for block in _blocks(page, "sh") for line in block.splitlines()]
    assert len(lines) == 14 and all(words[0] == "clew" for words in lines)
    for words in lines:
        done(*words[1:])
    for block in _blocks(page, "python"):
        exec(block, {})
    assert clew.Run.open("runs/first").streams() == ["rank-0", "rank-1"]
    assert Path("runs/first/report.html").exists() and Path("scores.parquet").exists()


def test_messages_of_troubleshooting_are_in_the_source() -> None:
    source = "\n".join(path.read_text() for path in Path(clew.__file__).parent.rglob("*.py"))
    source = re.sub(r"\"\s*\n\s*f?\"", "", source)  # a message may be written in several parts
    messages = re.findall(r"^\| `([^`]+)` \|", (START / "troubleshooting.md").read_text(), flags=re.MULTILINE)
    messages = [text for text in messages if text not in ("message", *FROM_ELSEWHERE)]
    assert len(messages) > 20
    for message in messages:
        for part in message.split("..."):
            assert part.strip("'; ") in source, message


def test_every_extra_is_on_the_page_of_installing() -> None:
    import tomllib

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    text = (START / "install.md").read_text()
    assert [name for name in extras if f"`{name}`" not in text and name != "dask-awkward"] == []


def test_every_verb_has_an_entry_in_the_reference() -> None:
    assert "{clew-reference} commands" in (ROOT / "docs" / "reference" / "cli.md").read_text()
    assert len(command().commands) > 20
