"""The documentation is right: files exist, commands exist, the example works."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from torch import nn

from clew.cli.main import app
from clew.data.table import Table
from tests.pages.commands import commands

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])


def _blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_exist(page: Path) -> None:
    command: Any = typer.main.get_command(app)
    for line in commands(str(page.relative_to(ROOT))):
        words = shlex.split(line)
        if words[:1] == ["make"]:
            assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), flags=re.MULTILINE), line
        elif words[:1] == ["clew"]:
            _check_command(command, words[1:], line)


def _check_command(command: Any, words: list[str], line: str) -> None:
    """Every verb and option of a line is known to the command line."""
    while hasattr(command, "commands"):
        assert words[0] in command.commands, line
        command, words = command.commands[words[0]], words[1:]
    options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    for word in words[: words.index("--") if "--" in words else None]:  # what follows is for a script
        assert not word.startswith("--") or word.partition("=")[0] in options, f"{word} in {line}"


def test_the_readme_lists_six_to_eight_files_to_read_that_exist() -> None:
    section = (ROOT / "README.md").read_text().partition("## Read the code in this order")[2].partition("\n## ")[0]
    files = re.findall(r"^\d+\. \[`([^`]+)`\]\(([^)]+)\)", section, flags=re.MULTILINE)
    assert 6 <= len(files) <= 8
    for shown, target in files:
        assert shown == target and (ROOT / target).is_file(), target


def test_ci_calls_the_readme_test_command() -> None:
    assert "make test" in _blocks(ROOT / "README.md", "sh")[0]
    assert re.search(r"^make test\b", (ROOT / ".ci" / "run").read_text(), flags=re.MULTILINE)


def test_the_five_lines_of_the_readme_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)
    signal = rng.integers(0, 2, 800)
    columns = {name: rng.normal(signal, 1).astype(np.float32) for name in ("pt", "eta", "mass")}
    Table({**columns, "signal": signal}).save(tmp_path / "events.h5")
    (lines,) = _blocks(ROOT / "README.md", "python")
    assert len([line for line in lines.splitlines() if line.strip()]) == 5
    names: dict[str, Any] = {"model": nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)), "events": columns}
    exec(lines, names)
    assert len(names["scores"]["output"]) == 800 and names["run"].streams() == ["rank-0", "rank-1"]
    assert names["run"].report_file.exists()
