"""The site is built offline without a warning, and its pages ask no other server for anything."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LOADED = re.compile(r"""<(?:script|img|iframe|source)[^>]*\ssrc="(https?:)?//|<link[^>]*\shref="(https?:)?//|@import""")

pytestmark = [pytest.mark.timeout(700), pytest.mark.long]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. Notebooks are not executed: `tests/test_examples.py` does that."""
    pytest.importorskip("sphinx", reason="Sphinx is not installed")
    folder = tmp_path_factory.mktemp("site")
    words = ["-n", "-W", "--keep-going", "-q", "-D", "nb_execution_mode=off", "-d", str(folder / "doctrees")]
    ended = subprocess.run(
        [sys.executable, "-m", "sphinx", *words, "-b", "html", str(ROOT / "docs"), str(folder / "html")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return folder / "html"


def test_no_page_loads_anything_from_another_server(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 60
    assert [page.name for page in pages if LOADED.search(page.read_text())] == []
    assert not any("@import" in style.read_text() or "http" in style.read_text() for style in site.rglob("clew.css"))


def test_every_page_is_in_the_contents(site: Path) -> None:
    home = (site / "index.html").read_text()
    for folder in ("start", "tutorials", "howto", "reference", "explanation", "measurements", "contributing"):
        assert f'href="{folder}/index.html"' in home


def test_the_search_finds_words_without_a_network(site: Path) -> None:
    index = (site / "searchindex.js").read_text()
    assert "easgd" in index and "train.asynchronous.sync_every" in index


def test_links_to_the_repository_lead_to_files_that_exist(site: Path) -> None:
    links = {
        link
        for page in site.rglob("*.html")
        for link in re.findall(r'href="https://github\.com/clew-hep/clew/(?:blob|tree)/main/([^"#]+)', page.read_text())
    }
    assert len(links) > 20
    assert [link for link in links if not (ROOT / link).exists()] == []
