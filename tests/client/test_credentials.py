"""The server and the token of a user: from the environment, or from the file that `clew login` writes."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from clew.client.credentials import Credentials, credentials, log_in, log_out, login_file, recorded_address
from clew.errors import ConfigError


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEW_CONFIG", str(tmp_path / "a/config"))
    for name in ("CLEW_SERVER", "CLEW_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def test_a_login_is_saved_for_the_user_alone(tmp_path: Path) -> None:
    assert log_in(Credentials("http://here:1", "clew_a")) == login_file() == tmp_path / "a/config/login.json"
    assert stat.S_IMODE(login_file().stat().st_mode) == 0o600
    assert stat.S_IMODE(login_file().parent.stat().st_mode) == 0o700
    assert list(login_file().parent.iterdir()) == [login_file()]
    assert credentials() == Credentials("http://here:1", "clew_a")


def test_a_new_login_replaces_the_old_one() -> None:
    log_in(Credentials("http://a-long-name-of-a-server:1", "clew_a_long_token"))
    log_in(Credentials("http://b:2", "clew_b"))
    assert credentials() == Credentials("http://b:2", "clew_b")


def test_a_token_of_another_server_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    log_in(Credentials("http://here:1", "clew_a"))
    monkeypatch.setenv("CLEW_SERVER", "http://there:2/")
    with pytest.raises(ConfigError, match="CLEW_TOKEN is not"):
        credentials()
    monkeypatch.setenv("CLEW_SERVER", "http://here:1/")
    assert credentials() == Credentials("http://here:1", "clew_a")


def test_the_environment_comes_before_the_login(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEW_TOKEN", "clew_b")
    assert credentials() is None
    log_in(Credentials("http://here:1", "clew_a"))
    assert credentials() == Credentials("http://here:1", "clew_b")
    monkeypatch.setenv("CLEW_SERVER", "http://there:2/")
    assert credentials() == Credentials("http://there:2", "clew_b")
    monkeypatch.setenv("CLEW_SERVER", "")
    assert credentials() is None


def test_a_damaged_login_is_reported() -> None:
    log_in(Credentials("http://here:1", "clew_a"))
    for text in ("{", "[]", '{"server": "http://here:1"}'):
        login_file().write_text(text)
        with pytest.raises(ConfigError, match="damaged; log in again"):
            credentials()


def test_logging_out_removes_the_login() -> None:
    assert not log_out()
    log_in(Credentials("http://here:1", "clew_a"))
    assert log_out() and not login_file().exists() and credentials() is None


def test_the_address_of_a_forwarded_port_is_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    log_in(Credentials("http://here:1", "clew_a", "127.0.0.1:8470"))
    assert credentials() == Credentials("http://here:1", "clew_a", "127.0.0.1:8470")
    assert recorded_address("http://here:1") == "127.0.0.1:8470" and recorded_address("http://there:1") is None
    monkeypatch.setenv("CLEW_TOKEN", "clew_b")
    assert credentials() == Credentials("http://here:1", "clew_b", "127.0.0.1:8470")
    log_in(Credentials("http://here:1", "clew_a"))
    assert recorded_address("http://here:1") is None and "address" not in login_file().read_text()


def test_a_login_is_not_written_through_a_link(tmp_path: Path) -> None:
    log_in(Credentials("http://here:1", "clew_a"))
    temporary = login_file().with_name(f".login.json.{os.getpid()}")
    temporary.symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="symbolic"):
        log_in(Credentials("http://here:1", "clew_b"))
    assert not (tmp_path / "target").exists()


def test_a_token_is_not_shown() -> None:
    assert "clew_a" not in repr(Credentials("http://here:1", "clew_a"))
