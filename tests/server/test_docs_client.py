"""The page on the client in Python: its optimiser finds the minimum."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from clew import Client

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "client.md"


def test_the_optimiser_of_the_page_works(
    client_for: Callable[..., Client], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ada = client_for("ada")
    monkeypatch.setenv("CLEW_SERVER", ada.server)
    monkeypatch.setenv("CLEW_TOKEN", ada.connection.http.headers["Authorization"].removeprefix("Bearer "))
    block = next(each for each in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "studies" in each)
    exec(compile(block, "docs/howto/client.md", "exec"), {})
    assert abs(eval(capsys.readouterr().out)["x"] - 3) < 2
