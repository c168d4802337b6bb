"""docs/explanation/security.md: its routes are those of the code, and the tests that it names exist."""

from __future__ import annotations

import re
from pathlib import Path

from clew.server.api.route_list import markdown_table, route_list

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explanation" / "security.md").read_text()


def test_the_page_lists_the_routes_of_the_code() -> None:
    assert PAGE.partition("## Routes and scopes")[2].endswith(f"\n{markdown_table()}")


def test_only_these_routes_need_no_token() -> None:
    unprotected = [(route.method, route.path) for route in route_list() if route.access == "no token"]
    assert unprotected == [("GET", "/api/v1/identity"), ("POST", "/api/v1/session"), ("GET", "/healthz")]


def test_the_tests_that_the_page_names_exist() -> None:
    names = set(re.findall(r"`(test_\w+)`", PAGE))
    defined = {
        name for file in (ROOT / "tests").rglob("test_*.py") for name in re.findall(r"def (test_\w+)", file.read_text())
    }
    assert len(names) > 20 and names <= defined, names - defined
