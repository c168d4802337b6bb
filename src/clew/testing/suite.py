"""What the suites share."""

from __future__ import annotations

from typing import Any

import pytest


def required(suite: type, name: str, example: str) -> Any:
    """Return a class attribute that the author of a suite must set.

    Args:
        suite: The class of the tests.
        name: Name of the attribute.
        example: A value, as it is written in Python.
    """
    value = getattr(suite, name)
    if value is None:
        pytest.fail(f"{suite.__name__} needs a class attribute {name}, for example: {name} = {example}", pytrace=False)
    return value
