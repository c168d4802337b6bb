"""Lists in options of `clew bench`: values separated by commas."""

from __future__ import annotations

from clew.errors import ConfigError


def parts(text: str) -> list[str]:
    """Return the parts of a text between commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def whole_numbers(text: str, option: str) -> list[int]:
    """Return the whole numbers between commas.

    Raises:
        ConfigError: A part is not a whole number.
    """
    try:
        return [int(part) for part in parts(text)]
    except ValueError:
        raise ConfigError(f"{option} {text}: expected whole numbers separated by commas, for example 1,2,4") from None
