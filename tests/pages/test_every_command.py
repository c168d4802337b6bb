"""No command of the documentation is without a test, unless a table says why."""

from __future__ import annotations

import ast
import re

import pytest

from tests.pages.commands import PAGES, ROOT, blocks, commands
from tests.pages.elsewhere import BY_OTHER_TESTS, NOT_RUN, Elsewhere, starts_with
from tests.pages.run_here import RUN_HERE
from tests.pages.scenes import SCENES

HELP = (
    "no test runs this command. Add the page to tests/pages/run_here.py, or, in tests/pages/elsewhere.py, name the "
    "test that runs the command (BY_OTHER_TESTS) or the reason why none does (NOT_RUN)"
)
WORDS = ("clew", "mpiexec", "torchrun", "srun")


@pytest.mark.parametrize("page", PAGES)
def test_every_command_is_run_or_has_a_reason(page: str) -> None:
    for command in commands(page):
        known = page in RUN_HERE or any(each.names(page, command) for each in (*BY_OTHER_TESTS, *NOT_RUN))
        assert known, f"{page}: {command}: {HELP}"


@pytest.mark.parametrize("page", PAGES)
def test_commands_are_in_blocks_of_sh(page: str) -> None:
    text = (ROOT / page).read_text()
    for language, block in re.findall(r"^```([^\n]*)\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE):
        others = [line for line in block.splitlines() if line.partition(" ")[0] in WORDS]
        assert language == "sh" or not others, f"{page}: write this in a block of sh: {others}"


def test_a_new_command_is_noticed() -> None:
    known = Elsewhere("docs/howto/new.md", "clew train...--on", "needs Slurm")
    assert known.names("docs/howto/new.md", "clew train tracking --on mycluster")
    assert not known.names("docs/howto/new.md", "clew train tracking")
    assert not known.names("docs/howto/other.md", "clew train tracking --on mycluster")


@pytest.mark.parametrize("entry", [*BY_OTHER_TESTS, *NOT_RUN], ids=lambda each: f"{each.page}-{each.start}")
def test_every_entry_of_the_tables_is_about_a_command(entry: Elsewhere) -> None:
    assert [command for command in commands(entry.page) if entry.names(entry.page, command)], "delete this entry"


@pytest.mark.parametrize("name", sorted({each.reason for each in BY_OTHER_TESTS}))
def test_the_tests_of_the_table_exist(name: str) -> None:
    file, _, function = name.partition("::")
    tests = {each.name for each in ast.parse((ROOT / file).read_text()).body if isinstance(each, ast.FunctionDef)}
    assert function in tests if function else tests


@pytest.mark.parametrize("page", RUN_HERE)
def test_what_makes_a_page_small_is_about_its_commands(page: str) -> None:
    here = RUN_HERE[page]
    lines = commands(page)
    assert lines and set(here.presumes) <= set(SCENES)
    assert all(number < len(blocks(page, language)) for _, language, number in here.files)
    lines += [line for _, before in here.before for line in before]
    for start, _ in (*here.added, *here.before, *here.background):
        assert any(starts_with(line, start) for line in lines), f"delete what is about '{start}'"
