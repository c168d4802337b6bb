"""A user of the dashboard in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.conftest import Live


class Visitor:
    """A user with a browser, logged in."""

    def __init__(self, browser: Any, live: Live, token: str, **options: Any) -> None:
        self.live = live
        self.context = browser.new_context(viewport={"width": 1400, "height": 900}, **options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(60_000)
        self.faults: list[str] = []
        """Errors of scripts, and alerts that opened."""
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.goto(f"{live.url}/login")
        self.page.fill("#token", token)
        self.page.click("text=Log in >> visible=true")
        self.page.wait_for_url(f"{live.url}/")

    def open(self, path: str, wait: Any = "load") -> Any:
        """A page of the server."""
        self.page.goto(f"{self.live.url}{path}", wait_until=wait)
        return self.page


@pytest.fixture
def visitor(browser: Any, shared_server: Live) -> Iterator[Visitor]:
    """The administrator of the shared server."""
    result = Visitor(browser, shared_server, shared_server.token)
    yield result
    result.context.close()
