"""Marks of names that may change."""

from __future__ import annotations

import inspect
import re
import warnings
from pathlib import Path

import pytest

import clew
from clew.core.stability import deprecated, experimental, stability

POLICY = Path(__file__).parents[2] / "docs" / "contributing" / "release.md"


@deprecated(since="0.2.0", removed_in="0.4.0", use="new()")
def old(value: int) -> int:
    """Return the value.

    Args:
        value: Any number.
    """
    return value


@deprecated(since="0.2.0", removed_in="0.4.0", use="New")
class Old:
    """A class."""

    def __init__(self, value: int) -> None:
        self.value = value


@experimental(since="0.1.0")
def fresh() -> int:
    """Return one."""
    return 1


def test_a_deprecated_function_warns_at_the_place_of_the_call_and_works() -> None:
    with pytest.warns(DeprecationWarning, match=r"^old is deprecated since clew 0.2.0 .* 0.4.0; use new\(\)$") as seen:
        assert old(3) == 3
    assert Path(seen[0].filename) == Path(__file__)


def test_a_deprecated_class_warns_when_an_object_is_made() -> None:
    with pytest.warns(DeprecationWarning, match="Old is deprecated"):
        assert Old(3).value == 3


def test_an_experimental_function_does_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fresh() == 1


def test_docstrings_say_it_and_keep_their_sections() -> None:
    text = inspect.getdoc(old) or ""
    assert text.splitlines()[0] == "Return the value." and "\n\nold is deprecated" in text and "\nArgs:\n" in text
    assert "Experimental since clew 0.1.0" in (inspect.getdoc(fresh) or "")


def test_a_name_without_a_mark_is_stable() -> None:
    assert [stability(each) for each in (fresh, old, Old, clew.train)] == [
        "experimental",
        "deprecated",
        "deprecated",
        "stable",
    ]


def test_the_policy_lists_every_marked_public_name() -> None:
    marked = {name: stability(getattr(clew, name)) for name in clew.__all__}
    listed = dict(re.findall(r"^\| `clew\.(\w+)` \| (\w+) \|", POLICY.read_text(), flags=re.MULTILINE))
    assert {name: mark for name, mark in marked.items() if mark != "stable"} == listed
