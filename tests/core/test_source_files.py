"""The modules of a script's folder that travel with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from clew.core.source_files import check_name_in_source, local_sources
from clew.errors import RecipeError


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / next(iter(files))


def test_all_imported_modules_of_the_folder_are_returned(tmp_path: Path) -> None:
    entry = write(
        tmp_path,
        {
            "mine.py": "import numpy, layers\nfrom tools.plots import draw\nfrom package import inner\n",
            "layers.py": "def build():\n    import lazy\n",
            "lazy.py": "import mine\n",
            "tools/plots.py": "from . import colours\n",
            "tools/colours.py": "from ..layers import build\n",
            "package/__init__.py": "from .deep.module import value\n",
            "package/inner.py": "",
            "package/deep/module.py": "value = 1\n",
            "unused.py": "",
            "numpy_notes.txt": "",
        },
    )
    assert sorted(local_sources(entry)) == [
        "layers.py",
        "lazy.py",
        "mine.py",
        "package/__init__.py",
        "package/deep/module.py",
        "package/inner.py",
        "tools/colours.py",
        "tools/plots.py",
    ]


def test_a_relative_import_beyond_the_folder_is_not_followed(tmp_path: Path) -> None:
    entry = write(tmp_path, {"inside/mine.py": "from ..outside import x\n", "outside.py": ""})
    assert list(local_sources(entry)) == ["mine.py"]


def test_a_file_that_is_not_python_is_refused_with_its_line(tmp_path: Path) -> None:
    entry = write(tmp_path, {"mine.py": "import layers\n", "layers.py": "x = 1\ny = = 2\n"})
    with pytest.raises(RecipeError, match=r"layers\.py:2: not valid Python"):
        local_sources(entry)


@pytest.mark.parametrize("name", ["build", "Net", "Net.small", "size", "relu", "np", "chosen"])
def test_names_at_the_top_level_are_found_without_running_the_file(name: str, tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text(
        "import numpy as np\nfrom torch import relu\nsize: int = 3\ndef build(): ...\nclass Net: ...\n"
        "try:\n    chosen = 1\nexcept ImportError:\n    raise\nraise SystemExit(1)\n"
    )
    check_name_in_source(path, name)


def test_a_name_that_a_file_does_not_define_is_refused_with_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text("def build():\n    inner = 1\n    return inner, used\n")
    with pytest.raises(RecipeError, match=r"net\.py has no 'bild'; did you mean 'build'\?"):
        check_name_in_source(path, "bild")
    for name in ("inner", "used"):
        with pytest.raises(RecipeError, match=f"has no '{name}'"):
            check_name_in_source(path, name)


def test_names_that_only_the_running_file_knows_are_not_refused(tmp_path: Path) -> None:
    (tmp_path / "star.py").write_text("from layers import *\n")
    (tmp_path / "lazy.py").write_text("def __getattr__(name): ...\n")
    for file in ("star.py", "lazy.py"):
        check_name_in_source(tmp_path / file, "anything")
