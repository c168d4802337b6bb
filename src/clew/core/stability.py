"""Marks of public names that may change: `experimental`, `deprecated`. The policy: docs/contributing/release.md."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar, cast

T = TypeVar("T", bound=Callable[..., Any])


def experimental(*, since: str) -> Callable[[T], T]:
    """Mark a function or class whose interface may change in any version. Its docstring says so; calls are not changed.

    Args:
        since: Version of clew that has it first.

    Example:
        >>> @experimental(since="0.1.0")
        ... def draw() -> int:
        ...     "Draw."
        ...     return 1
        >>> stability(draw)
        'experimental'
    """

    def mark(target: T) -> T:
        return _marked(target, "experimental", f"Experimental since clew {since}: its interface may change.")

    return mark


def deprecated(*, since: str, removed_in: str, use: str) -> Callable[[T], T]:
    """Mark a function or class that will be removed. A call warns once per place of the call.

    Args:
        since: Version of clew that marks it first.
        removed_in: Version of clew that will not have it: at least one minor version later.
        use: What replaces it.

    Example:
        >>> @deprecated(since="0.2.0", removed_in="0.4.0", use="new()")
        ... def old() -> int:
        ...     "Do it."
        ...     return 1
        >>> stability(old)
        'deprecated'
    """

    def mark(target: T) -> T:
        text = f"{target.__qualname__} is deprecated since clew {since} and will be removed in {removed_in}; use {use}"
        if isinstance(target, type):
            _warn_in_constructor(target, text)
            return _marked(target, "deprecated", f"{text}.")

        @functools.wraps(target)
        def wrapper(*arguments: Any, **settings: Any) -> Any:
            warnings.warn(text, DeprecationWarning, stacklevel=2)
            return target(*arguments, **settings)

        return _marked(cast(T, wrapper), "deprecated", f"{text}.")

    return mark


def stability(target: object) -> str:
    """Return `experimental`, `deprecated`, or `stable` for a name without a mark."""
    return str(getattr(target, "__stability__", "stable"))


def _marked(target: T, mark: str, note: str) -> T:
    marked = cast(Any, target)
    marked.__stability__ = mark
    summary, _, rest = (target.__doc__ or "").partition("\n")
    marked.__doc__ = f"{summary}\n\n{_indent(rest)}{note}\n{rest}"
    return target


def _indent(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return " " * min((len(line) - len(line.lstrip()) for line in lines), default=0)


def _warn_in_constructor(kind: Any, text: str) -> None:
    original = kind.__init__

    @functools.wraps(original)
    def constructor(self: Any, *arguments: Any, **settings: Any) -> None:
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        original(self, *arguments, **settings)

    kind.__init__ = constructor
