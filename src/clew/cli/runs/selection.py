"""`clew runs list --where`: the query language of the dashboard over run folders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from clew.errors import ClewError
from clew.runs.query import check_names, parse_query

if TYPE_CHECKING:
    from clew.runs.listing import RunListing


def matching_runs(runs: Sequence[RunListing], where: str) -> list[RunListing]:
    """Return the runs that match a query.

    Args:
        runs: The runs of a folder.
        where: The query, as `lr < 0.01 and efficiency > 0.9`.

    Raises:
        QueryError: it cannot be understood, or no run has a name in it.
    """
    query = parse_query(where)
    values = {each.path: _values(each) for each in runs}
    check_names(query, where, {name for each in values.values() for name in each})
    return [each for each in runs if query.matches(values[each.path])]


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
