"""The message of a value that does not validate, in words: a regular expression is never shown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from clew.errors import nearest

_CLASS = re.compile(r"\[(\^?)((?:\\.|[^\]\\])+)\]")
_RANGES = {"A-Z": "letters", "a-z": "letters", "0-9": "digits", "a-f": "letters a to f"}
_EXPECTED = {"int_parsing": "expected a whole number", "float_parsing": "expected a number"}
_ESCAPES = {r"\s": "spaces", r"\n": "line breaks", r"\r": "line breaks", r"\t": "tabs", r"\x00": "", r"\\": "\\"}


def validation_text(detail: Mapping[str, Any]) -> str:
    """Return what is wrong with a value.

    Args:
        detail: One of the `errors()` of pydantic.

    Example:
        >>> pattern = {"pattern": "^[A-Za-z0-9_.-]+$"}
        >>> validation_text({"type": "string_pattern_mismatch", "input": "a b", "ctx": pattern})
        "'a b' is not accepted: only letters, digits and _ . -"
    """
    if detail.get("type") in _EXPECTED:
        return _EXPECTED[str(detail["type"])]
    if detail.get("type") == "literal_error":
        names = re.findall(r"'([^']*)'", str(detail.get("ctx", {}).get("expected", "")))
        suggestion = nearest(str(detail.get("input", "")), names)
        return f"{detail['msg']}{suggestion if 'did you mean' in suggestion else ''}"
    if detail.get("type") != "string_pattern_mismatch":
        return str(detail["msg"]).removeprefix("Value error, ")
    value, pattern = str(detail.get("input", ""))[:60], str(detail.get("ctx", {}).get("pattern", ""))
    return f"'{value}' is not accepted{_allowed(pattern)}"


def _allowed(pattern: str) -> str:
    """Return the characters that a pattern allows, as far as they can be read from its last class of characters."""
    classes = _CLASS.findall(pattern)
    if not classes:
        return ""
    negated, content = classes[-1]
    words, rest = [], content
    for name, word in _RANGES.items():
        if name in rest:
            rest = rest.replace(name, "")
            words += [word] if word not in words else []
    for name, word in _ESCAPES.items():
        if name in rest:
            rest = rest.replace(name, "")
            words += [word] if word and word not in words else []
    marks = " ".join(dict.fromkeys(rest.replace("\\", "")))
    described = ", ".join(words) + (f" and {marks}" if marks and words else marks)
    return f": {'no' if negated else 'only'} {described}" if described else ""
