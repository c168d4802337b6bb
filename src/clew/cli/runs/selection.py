"""The query language of the dashboard over run folders: `clew runs list --where`, `--sort` and `--columns`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from clew.errors import ClewError, ConfigError, nearest
from clew.runs.query import check_names, parse_query, resolve_name

if TYPE_CHECKING:
    from clew.runs.listing import RunListing


class RunValues:
    """Settings, metrics and facts of the runs of a folder. The runs are opened when the first value is needed."""

    def __init__(self, runs: Sequence[RunListing]) -> None:
        self._runs = runs

    @cached_property
    def _values(self) -> dict[str, dict[str, Any]]:
        return {each.path: _values(each) for each in self._runs}

    @cached_property
    def _names(self) -> set[str]:
        return {name for each in self._values.values() for name in each}

    def matching(self, where: str) -> list[RunListing]:
        """Return the runs that match a query.

        Args:
            where: The query, as `lr < 0.01 and efficiency > 0.9`.

        Raises:
            QueryError: it cannot be understood, or no run has a name in it.
        """
        query = parse_query(where)
        check_names(query, where, self._names)
        return [each for each in self._runs if query.matches(self._values[each.path])]

    def column(self, name: str, option: str, runs: Sequence[RunListing]) -> list[Any]:
        """Return the values of a setting, metric or fact; None for runs without it.

        Args:
            name: The name, or the end of one.
            option: The option that named it, for the message.
            runs: The runs.

        Raises:
            ConfigError: no run has it.
        """
        full = resolve_name(name, self._names)
        if full is None or full not in self._names:
            metrics = {each.rpartition("/")[2] for each in self._names if "/" in each}
            raise ConfigError(f"{option} {name}: no run has it{nearest(name, metrics | {'name', 'time'})}")
        return [self._values[each.path].get(full) for each in runs]

    def columns(self, text: str, runs: Sequence[RunListing]) -> dict[str, list[Any]]:
        """Return the values of several columns, separated by commas in `text`, by name."""
        names = [name.strip() for name in text.split(",") if name.strip()]
        return {name: self.column(name, "--columns", runs) for name in names}


def _values(listing: RunListing) -> dict[str, Any]:
    """Return settings, metrics and facts of a run by name. A damaged run has facts only."""
    from clew.runs import Run
    from clew.runs.comparison import flatten_settings

    facts = ("name", "state", "recipe", "message", "epochs", "epochs_done", "workers", "seconds", "started")
    values: dict[str, Any] = {name: getattr(listing, name) for name in facts}
    values["speed"] = listing.times.samples_per_second
    values |= {f"val/{name}": value for name, value in listing.metrics.items()}
    try:
        run = Run.open(listing.path)
        values |= dict(flatten_settings(run.config().data))
        for evaluation, record in run.evaluations().items():
            values |= {f"{evaluation}/{name}": entry["value"] for name, entry in record["metrics"].items()}
    except (ClewError, OSError):
        return values
    return values
