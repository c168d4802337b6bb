"""The commands of each page run as they are written, one after the other, on less data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli import Outcome
from tests.pages.commands import blocks, commands
from tests.pages.elsewhere import BY_OTHER_TESTS, NOT_RUN, starts_with
from tests.pages.run_here import RUN_HERE, Page
from tests.pages.scenes import SCENES
from tests.pages.terminal import Terminal, failure


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", RUN_HERE)
def test_the_commands_of_a_page_work(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    here = RUN_HERE[page]
    monkeypatch.chdir(tmp_path)
    for name in here.presumes:
        SCENES[name](request)
    for name, language, number in here.files:
        Path(name).write_text(blocks(page, language)[number])
    monkeypatch.setenv("CLEW_CONFIG", str(tmp_path / "config"))
    monkeypatch.setenv("CLEW_SITES", str(tmp_path / "sites"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    elsewhere = [each for each in (*BY_OTHER_TESTS, *NOT_RUN) if each.page == page]
    wrong = []
    with Terminal() as terminal:
        for command in commands(page):
            if not any(each.names(page, command) for each in elsewhere):
                wrong += [failure(line, ended) for line, ended in _type(terminal, here, command)]
    problems = "\n".join(each for each in wrong if each)
    assert not problems, problems


def _type(terminal: Terminal, here: Page, command: str) -> Iterator[tuple[str, Outcome]]:
    """Run what stands for a command: lines before it, and the line itself."""
    due = [each for each in here.before if starts_with(command, each[0]) and each not in terminal.typed]
    terminal.typed += due
    before = [line for _, lines in due for line in lines]
    for template, original in (*((each, each) for each in before), (here.line(command), command)):
        signs = [sign for start, sign in here.background if starts_with(original, start)]
        line = terminal.filled(template)
        ended = terminal.start(line, signs[0]) if signs else terminal.run(line)
        print("$", line, ended.out, ended.err, sep="\n", flush=True)  # pytest shows it if the test fails
        yield line, ended
