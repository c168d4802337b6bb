"""The pictures of docs/explanation are those that the script draws, and each is on a page."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "images" / "explanation"
PICTURES = sorted(FOLDER.glob("*.svg"))


def test_the_script_draws_the_stored_pictures(tmp_path: Path) -> None:
    """The script is copied, so it writes elsewhere."""
    (tmp_path / "tools").mkdir()
    (tmp_path / "docs" / "images").mkdir(parents=True)
    for name in ("draw_explanations.py", "svg_diagrams.py"):
        (tmp_path / "tools" / name).write_text((ROOT / "tools" / name).read_text())
    subprocess.run([sys.executable, str(tmp_path / "tools" / "draw_explanations.py")], check=True)
    drawn = {path.name: path.read_text() for path in (tmp_path / "docs" / "images" / "explanation").iterdir()}
    assert drawn == {path.name: path.read_text() for path in PICTURES}


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.stem)
def test_a_picture_has_a_title_and_is_shown_with_a_description(picture: Path) -> None:
    title = ElementTree.parse(picture).find("{http://www.w3.org/2000/svg}title")
    assert title is not None and title.text
    pages = [page.read_text() for page in (ROOT / "docs" / "explanation").glob("*.md")]
    shown = f"](../images/explanation/{picture.name})"
    assert any(shown in page and f"![{shown}" not in page for page in pages)
