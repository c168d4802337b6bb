"""Which files are the user's own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clew.core.trust import (
    ORIGIN,
    config_folder,
    content_digest,
    foreign_origin,
    is_file_trusted,
    is_trusted,
    mark_origin,
    refusal,
    remember,
    trust_file,
)
from clew.errors import RunError


def test_a_file_that_a_browser_downloaded_is_from_elsewhere(tmp_path: Path) -> None:
    file = tmp_path / "model.pt2"
    file.touch()
    assert foreign_origin(file) is None
    try:
        os.setxattr(file, "user.xdg.origin.url", b"https://example.org/model.pt2")
    except OSError:
        pytest.skip("a file system without attributes")
    assert foreign_origin(file) == "https://example.org/model.pt2"
    assert foreign_origin(tmp_path) is None


def test_a_mark_counts_for_everything_below_it(tmp_path: Path) -> None:
    mark_origin(tmp_path / "run", "https://example.org")
    (tmp_path / "run" / "code").mkdir()
    assert foreign_origin(tmp_path / "run" / "code") == "https://example.org"
    assert foreign_origin(tmp_path) is None


@pytest.mark.parametrize(
    ("count", "named"), [(1, "a0"), (3, "a0, a1, a2"), (4, "a0, a1, a2 and 1 more"), (9, "a0, a1, a2 and 6 more")]
)
def test_a_refusal_names_three_files(count: int, named: str) -> None:
    message = str(refusal(Path("run"), "user 5", [f"a{number}" for number in range(count)]))
    assert f"run came from user 5 and would run code as you: {named}; read it" in message


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLEW_CONFIG", str(tmp_path / "config"))
    return tmp_path / "config"


def test_files_of_the_administrator_are_trusted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The administrator can replace clew itself. Another user's files are not trusted."""
    file = tmp_path / "theirs"
    file.touch()
    if os.getuid() == 0:
        os.chown(file, 1, -1)
    owner = file.stat().st_uid
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    assert foreign_origin(Path("/etc/passwd")) is None
    assert foreign_origin(file) == foreign_origin(Path("/etc"), [file]) == f"user {owner}"
    monkeypatch.setattr(os, "getuid", lambda: owner)
    assert foreign_origin(file) is None


@pytest.mark.parametrize("text", ["", "[]", "{", "{}", "5"])
def test_a_damaged_mark_is_a_mark(text: str, tmp_path: Path) -> None:
    (tmp_path / ORIGIN).write_text(text)
    assert foreign_origin(tmp_path) == "elsewhere"


def test_the_folder_of_settings_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEW_CONFIG", "/a")
    assert config_folder() == Path("/a")
    monkeypatch.setenv("CLEW_CONFIG", "")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/b")
    assert config_folder() == Path("/b/clew")
    monkeypatch.delenv("XDG_CONFIG_HOME")
    assert config_folder() == Path.home() / ".config" / "clew"


def test_trust_is_that_of_a_content(settings: Path, tmp_path: Path) -> None:
    model, copy = tmp_path / "model", tmp_path / "copy"
    for folder in (model, copy):
        (folder / "parts").mkdir(parents=True)
        (folder / "parts" / "code.py").write_text("1")
    assert not is_file_trusted(model)
    trust_file(model)
    assert is_file_trusted(model) and is_file_trusted(copy)
    (copy / "parts" / "code.py").rename(copy / "code.py")
    assert not is_file_trusted(copy), "the names count"
    (model / "parts" / "code.py").write_text("2")
    assert not is_file_trusted(model), "and so does the content"
    trust_file(copy / "code.py")
    assert is_file_trusted(copy / "code.py") and not is_file_trusted(copy)


def test_a_digest_depends_on_names_content_and_what_is_added(tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    first.write_text("one")
    second.write_text("two")
    digest = content_digest([("a", first), ("b", second)])
    assert digest == content_digest([("b", second), ("a", first)]) and len(digest) == 64
    others = [[("a", second), ("b", first)], [("a", first)], [("a", first), ("c", second)]]
    assert digest not in [content_digest(each) for each in others]
    assert digest != content_digest([("a", first), ("b", second)], "more")


def test_trust_is_remembered_in_the_folder_of_settings(settings: Path) -> None:
    assert not is_trusted("0123")
    remember("0123", "a model")
    assert is_trusted("0123") and (settings / "trusted" / "0123").read_text() == "a model\n"


def test_trust_that_cannot_be_remembered_is_reported(settings: Path) -> None:
    settings.write_text("a file where the folder should be")
    with pytest.raises(RunError, match=r"trust cannot be remembered .*; set CLEW_CONFIG to a folder"):
        remember("0123", "a model")
