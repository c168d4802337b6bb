"""Finding a reader: by the name of a file, by its own name, and in other packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from clew import readers
from clew.data.readers import READERS
from clew.errors import ConfigError, DataError

from . import whole

SOURCE = """
import numpy as np
from clew import Table
from clew.data.readers import FilePiece, Reader

class Words(Reader):
    endings = (".words",)
    step: int = 2

    def pieces(self, location):
        return [FilePiece(first, first + self.step) for first in range(0, 6, self.step)]

    def load(self, location, piece):
        return Table({"n": np.arange(piece.start, piece.stop)})

class Unfinished:
    pass
"""


@pytest.fixture
def points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The entry points of a third-party distribution that Python sees as installed."""
    (tmp_path / "clew_words.py").write_text(SOURCE)
    facts = tmp_path / "clew_words-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: clew-words\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[clew.readers]\nwords = clew_words:Words\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "clew_words", raising=False)
    return facts / "entry_points.txt"


@pytest.mark.usefixtures("points")
def test_an_entry_point_adds_a_reader_by_name_and_by_ending() -> None:
    assert readers.available()["words"] == "clew_words:Words"
    assert whole("anywhere/a.txt", kind="words", step=3).fixed("n").tolist() == list(range(6))
    assert readers.kind_of("anywhere/A.WORDS") == "words"
    assert [len(part) for part in readers.read("a.words")] == [2, 2, 2]
    with pytest.raises(DataError, match=r"the known endings are .*\.words"):
        readers.kind_of("a.letters")


def test_a_reader_that_does_not_load_is_reported(points: Path) -> None:
    points.write_text("[clew.readers]\nlost = clew_words:Lost\nodd = clew_words:Unfinished\n")
    with pytest.raises(ConfigError, match=r"reader 'lost' \(clew_words:Lost\) cannot be loaded: .*Lost"):
        readers.find("lost")
    with pytest.raises(ConfigError, match=r"reader 'odd' .* is not a subclass of clew\.readers\.Reader"):
        readers.find("odd")


def test_a_third_party_cannot_replace_a_shipped_reader(points: Path) -> None:
    points.write_text("[clew.readers]\ntext = clew_words:Words\n")
    assert readers.find("text").__module__ == "clew.data.readers.text"
    assert readers.available()["text"] == "clew.data.readers.text:TextReader"


@pytest.mark.parametrize(
    ("location", "kind"),
    [
        ("events.TXT", "text"),
        ("s3://bucket/run 1/events.csv", "text"),
        ("file.root", "root"),
        ("root://server//store/file.root:dir/tree", "root"),
        ("zip://inner.h5::https://host/archive.zip", "hdf5"),
        ("simplecache::s3://bucket/a.parquet", "parquet"),
        ("dir.root/file.npz", "npz"),
        ("event000000001-hits.csv.gz", "trackml"),
        ("event000000001-truth.csv", "text"),
    ],
)
def test_the_name_of_a_file_selects_its_reader(location: str, kind: str) -> None:
    assert readers.kind_of(location) == kind


@pytest.mark.parametrize("name", ["data", "data.xls", "archive.tar.gz", ".txt/data"])
def test_a_name_without_a_reader_is_reported(name: str) -> None:
    with pytest.raises(DataError, match=r"no reader accepts files with this name; the known endings are .*\.txt, .*"):
        readers.read(name)


def test_an_unknown_ending_does_not_import_the_readers_of_recipes() -> None:
    code = (
        "import sys; from clew import errors, readers\n"
        "try: readers.read('data.xls')\n"
        "except errors.DataError: print(sorted(name for name in sys.modules if name.startswith('clew.recipes')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("kind", ["delphes", "edm4hep", "pfnano"])
def test_the_readers_of_recipes_are_found_by_name(kind: str) -> None:
    assert kind not in READERS
    assert readers.find(kind).__module__ == f"clew.recipes.particleflow.{kind}"


def test_an_unknown_reader_has_a_nearest() -> None:
    with pytest.raises(ConfigError, match="no reader 'parket'; did you mean 'parquet'"):
        readers.read("a.txt", kind="parket")


def test_a_setting_that_is_unknown_or_out_of_range_is_reported() -> None:
    with pytest.raises(ConfigError, match=r"the text reader: unknown key 'chunk'; did you mean 'chunk_mb'\?"):
        readers.read("a.txt", chunk=1)
    with pytest.raises(ConfigError, match=r"the root reader: chunk: input should be greater than .* \(given: 0\)"):
        readers.read("a.root", chunk=0)
    with pytest.raises(ConfigError, match=r"the text reader: layout: input should be 'bes3' or 'bmn'"):
        readers.read("a.txt", layout="bes")
