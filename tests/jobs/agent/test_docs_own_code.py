"""The page on jobs: its commands for an own recipe and an own script work as they are written."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from clew import Client
from tests.jobs.agent.conftest import StartAgent
from tests.jobs.agent.test_jobs import command

PAGE = Path(__file__).parents[3] / "docs" / "howto" / "jobs.md"
ClientFor = Callable[..., Client]


def blocks(section: str, language: str) -> list[str]:
    """The blocks of code in a section of the page."""
    text = re.split(r"^## ", PAGE.read_text().partition(f"## {section}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def typed(user: Client, folder: Path, line: str) -> str:
    """The output of a line of the page, which must succeed."""
    words = shlex.split(line, comments=True)[1:]
    done: subprocess.CompletedProcess[str] = command(user, *words, cwd=folder)
    assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.long
def test_the_steps_to_train_an_own_recipe(client_for: ClientFor, start_agent: StartAgent, tmp_path: Path) -> None:
    ada = client_for("ada")
    start_agent(ada, clew=True)
    (block,) = blocks("Your own recipe", "sh")
    numbers: dict[str, str] = {}
    """What the page calls the jobs, the run and the key."""
    output = ""
    for line in block.splitlines():
        for name, value in numbers.items():
            line = re.sub(rf"\b{name}\b", value, line)
        output = typed(ada, tmp_path, line)
        if "submit" in line and (match := re.search(r"^job (\d+):", output)):
            numbers[f"jobs {sum(name.startswith('jobs') for name in numbers) + 1}"] = f"jobs {match[1]}"
        if match := re.search(r"^ +dataset +([0-9a-f]{64}) *$", output, flags=re.MULTILINE):
            numbers["KEY"] = match[1]
        if match := re.search(r"^ +run +(\d+) *$", output, flags=re.MULTILINE):
            numbers["runs get 1"] = f"runs get {match[1]}"
    assert "samples/s" in output and "time per epoch" in output


def test_the_script_of_the_page_reports_to_the_server(
    client_for: ClientFor, start_agent: StartAgent, tmp_path: Path
) -> None:
    ada = client_for("ada")
    start_agent(ada, clew=True)
    (script,) = blocks("Your own script", "python")
    (tmp_path / "train.py").write_text(script)
    for line in "".join(blocks("Your own script", "sh")).splitlines():
        assert "mine" in typed(ada, tmp_path, line)
    (job,) = ada.jobs.list()
    assert job.run is not None and ada.runs.get(job.run).metrics == {"accuracy": 0.9}
