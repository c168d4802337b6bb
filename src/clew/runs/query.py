"""The query language of lists of runs: `lr < 0.01 and efficiency > 0.9 and tag:paper`.

One parser for the command line, the API and the dashboard. A query is conditions joined by `and` (which may be left
out), `or`, `not` and brackets. A condition compares a setting, a metric or a fact of a run with a value; `:` means
"contains". A word alone is searched in names, recipes, hosts and tags.

Example:
    >>> query = parse_query("lr < 0.01 and tag:paper")
    >>> query.matches({"train.optimizer.lr": 0.001, "tag": ["paper", "new"]})
    True
    >>> parse_query("lr <")
    Traceback (most recent call last):
    ...
    clew.runs.query.QueryError: lr <: a value is missing at character 5
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from clew.errors import ConfigError, nearest

SEARCHED = ("name", "recipe", "host", "message", "owner", "tag")
"""Facts in which a word alone is searched."""
_OTHER_FACTS = ("id", "state", "note", "study", "trial", "job", "dataset", "epochs", "epochs_done", "workers")
FACTS = (*SEARCHED, *_OTHER_FACTS, "speed", "seconds", "started", "ended")
"""Names that are facts of a run: neither settings nor metrics."""
_MAX_LENGTH = 2000
_MAX_CONDITIONS = 50
_TOKEN = re.compile(
    r"""\s*(?:(?P<operator><=|>=|!=|==|[<>=:()])|(?P<quoted>"[^"]*"|'[^']*')|(?P<word>[^\s<>=!:()"']+))"""
)
_NEGATED = {"!=": "="}


class QueryError(ConfigError):
    """A query that cannot be understood. The message has the position."""


class Query(ABC):
    """A part of a query."""

    @abstractmethod
    def matches(self, values: Mapping[str, Any]) -> bool:
        """Return whether a run matches.

        Args:
            values: Settings, metrics and facts of the run, by name. Tags are a list called `tag`.
        """

    @abstractmethod
    def conditions(self) -> Iterator[Condition]:
        """Yield all conditions of the query."""


@dataclass(frozen=True)
class Combination(Query):
    """Parts that must all match, or of which one must match."""

    parts: tuple[Query, ...]
    every: bool

    def matches(self, values: Mapping[str, Any]) -> bool:
        results = (part.matches(values) for part in self.parts)
        return all(results) if self.every else any(results)

    def conditions(self) -> Iterator[Condition]:
        for part in self.parts:
            yield from part.conditions()


@dataclass(frozen=True)
class Negation(Query):
    """A part that must not match."""

    part: Query

    def matches(self, values: Mapping[str, Any]) -> bool:
        return not self.part.matches(values)

    def conditions(self) -> Iterator[Condition]:
        yield from self.part.conditions()


@dataclass(frozen=True)
class Word(Query):
    """A word that one of the facts `SEARCHED` contains."""

    text: str

    def matches(self, values: Mapping[str, Any]) -> bool:
        return any(_compare(values.get(name), ":", self.text) for name in SEARCHED)

    def conditions(self) -> Iterator[Condition]:
        return iter(())


@dataclass(frozen=True)
class Condition(Query):
    """A comparison of a setting, metric or fact with a value."""

    name: str
    operator: str
    """One of `OPERATORS`."""
    value: str | float
    position: int = 0
    """Of the name in the query, counted from 1."""

    OPERATORS: ClassVar = ("<", "<=", ">", ">=", "=", ":")

    def matches(self, values: Mapping[str, Any]) -> bool:
        return _compare(values.get(resolve_name(self.name, values) or self.name), self.operator, self.value)

    def conditions(self) -> Iterator[Condition]:
        yield self


def resolve_name(name: str, known: Iterable[str]) -> str | None:
    """Return the full name of a setting, metric or fact: `lr` is `train.optimizer.lr`, `loss` is `val/loss`.

    Args:
        name: The name in a query, or the end of one.
        known: The names that runs have.

    Returns:
        The name itself if it is known; else `val/NAME`; else the only name, or the first and shortest one, that ends
        with it; None if there is none.
    """
    names = known if isinstance(known, (set, frozenset, Mapping)) else set(known)
    if name in FACTS or name in names:
        return name
    if f"val/{name}" in names:
        return f"val/{name}"
    ends = [each for each in names if each.endswith((f".{name}", f"/{name}"))]
    return min(ends, key=lambda each: (each.count(".") + each.count("/"), each), default=None)


def check_names(query: Query, text: str, known: Iterable[str]) -> None:
    """Check that every name of a query is known.

    Args:
        query: The query.
        text: The query as it was typed.
        known: The names that runs have.

    Raises:
        QueryError: a name is not known.
    """
    names = set(known)
    for condition in query.conditions():
        if resolve_name(condition.name, names) is None:
            short = {re.split(r"[./]", name)[-1] for name in names}
            hint = nearest(condition.name, {*FACTS, *names, *short})
            raise QueryError(f"{text}: no run has '{condition.name}' (at character {condition.position}){hint}")


def parse_query(text: str) -> Query:
    """Parse a query; an empty one matches all runs.

    Args:
        text: The query.

    Raises:
        QueryError: it cannot be understood. The message is one line with the position.
    """
    if len(text) > _MAX_LENGTH:
        raise QueryError(f"a query has at most {_MAX_LENGTH:,} characters")
    return _Parser(text).parse()


def is_simple(text: str) -> bool:
    """Return whether a query is words only, without names, operators or brackets."""
    words = text.split()
    return not re.search(r"[<>=:()\"']", text) and not {"and", "or", "not"} & {word.lower() for word in words}


@dataclass(frozen=True)
class _Token:
    text: str
    position: int
    kind: str


class _Parser:
    """Reads a query from left to right."""

    def __init__(self, text: str) -> None:
        self._text, self._tokens, self._next, self._count = text, list(self._split(text)), 0, 0

    def _split(self, text: str) -> Iterator[_Token]:
        place = 0
        while place < len(text.rstrip()):
            match = _TOKEN.match(text, place)
            if match is None:
                start = place + len(text[place:]) - len(text[place:].lstrip())
                raise QueryError(f"{text}: {text[start]!r} is not understood at character {start + 1}")
            kind = str(match.lastgroup)
            yield _Token(match[kind], match.start(kind) + 1, kind)
            place = match.end()

    def parse(self) -> Query:
        if not self._tokens:
            return Combination((), every=True)
        query = self._alternatives()
        if (token := self._peek()) is not None:
            raise self._error(f"'{token.text}' is not expected", token)
        return query

    def _alternatives(self) -> Query:
        parts = [self._conjunction()]
        while self._accept_word("or"):
            parts.append(self._conjunction())
        return parts[0] if len(parts) == 1 else Combination(tuple(parts), every=False)

    def _conjunction(self) -> Query:
        parts = [self._part()]
        while (token := self._peek()) is not None and token.text != ")" and not _is_word(token, "or"):
            self._accept_word("and")
            parts.append(self._part())
        return parts[0] if len(parts) == 1 else Combination(tuple(parts), every=True)

    def _part(self) -> Query:
        self._count += 1
        token = self._take("a condition")
        if self._count > _MAX_CONDITIONS:
            raise QueryError(f"a query has at most {_MAX_CONDITIONS} conditions")
        if _is_word(token, "not"):
            return Negation(self._part())
        if token.text == "(" and token.kind == "operator":
            inner = self._alternatives()
            if (closing := self._take("')'")).text != ")":
                raise self._error("')' is expected", closing)
            return inner
        if token.kind == "operator":
            raise self._error(f"a name is expected before '{token.text}'", token)
        following = self._peek()
        if following is None or following.kind != "operator" or following.text in "()":
            return Word(_unquoted(token))
        return self._condition(token, self._take("an operator").text)

    def _condition(self, name: _Token, operator: str) -> Query:
        value = self._take("a value")
        if value.kind == "operator":
            raise self._error(f"a value is expected, not '{value.text}'", value)
        plain = {"==": "=", "!=": "="}.get(operator, operator)
        content = _unquoted(value) if value.kind == "quoted" or plain == ":" else _value(value.text)
        if plain in ("<", "<=", ">", ">=") and not isinstance(content, float):
            raise self._error(f"'{operator}' needs a number, not '{content}'", value)
        condition = Condition(_unquoted(name), plain, content, name.position)
        return Negation(condition) if operator in _NEGATED else condition

    def _peek(self) -> _Token | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def _take(self, what: str) -> _Token:
        token = self._peek()
        if token is None:
            raise QueryError(f"{self._text}: {what} is missing at character {len(self._text.rstrip()) + 1}")
        self._next += 1
        return token

    def _accept_word(self, word: str) -> bool:
        token = self._peek()
        accepted = token is not None and _is_word(token, word)
        self._next += accepted
        return accepted

    def _error(self, message: str, token: _Token) -> QueryError:
        return QueryError(f"{self._text}: {message} at character {token.position}")


def _is_word(token: _Token, word: str) -> bool:
    return token.kind == "word" and token.text.lower() == word


def _unquoted(token: _Token) -> str:
    return token.text[1:-1] if token.kind == "quoted" else token.text


def _value(text: str) -> str | float:
    try:
        number = float(text)
    except ValueError:
        return text
    return number if abs(number) < 1e300 else text


def _compare(actual: Any, operator: str, value: str | float) -> bool:
    """Compare the value of a run. A run without the value never matches; text is compared without case."""
    if isinstance(actual, (list, tuple)):
        return any(_compare(each, operator, value) for each in actual)
    if actual is None:
        return False
    if operator == ":":
        return str(value).casefold() in str(actual).casefold()
    if isinstance(value, float) and isinstance(actual, (int, float)) and not isinstance(actual, bool):
        return {
            "<": actual < value,
            "<=": actual <= value,
            ">": actual > value,
            ">=": actual >= value,
            "=": actual == value,
        }[operator]
    return operator == "=" and _text(actual).casefold() == _text(value).casefold()


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)
