"""The page that compares several runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import Query, Request, Response

from clew.figure import COLOURS
from clew.runs.comparison import ABSENT, differing_values, flatten_settings, setting_text
from clew.runs.record_metrics import SPEED
from clew.server.api.runs import run_rows, visible_runs
from clew.server.dashboard import layout, panels
from clew.server.dashboard.explore import explore_data
from clew.server.dashboard.run_cards import curve_runs, metric_summaries, run_cards
from clew.server.database.tables import runs
from clew.server.problems import RequestError
from clew.server.runs.evaluations import RunEvaluation, run_evaluations

router = layout.router()
_MAX_RUNS = 20
_ENVIRONMENT_KEYS = ("host", "cpu", "cores_allowed", "memory_gb", "platform", "python", "clew", "commit", "packages")


@router.get("/compare")
def compare(
    request: Request, viewer: layout.Viewer, run: Annotated[list[int] | None, Query(max_length=_MAX_RUNS)] = None
) -> Response:
    """Curves in shared plots, settings that differ, and the best value of each metric."""
    ids = list(dict.fromkeys(number for number in run or () if 0 < number < 2**63))
    if len(ids) < 2:
        raise RequestError(422, "Select two runs or more to compare.", hint="Tick them in the list of runs.")
    with request.app.state.service.database.read() as connection:
        rows = connection.execute(visible_runs(viewer).where(runs.c.id.in_(ids))).mappings()
        cards = {card["id"]: card for card in run_cards(connection, run_rows(connection, [dict(row) for row in rows]))}
        columns = (runs.c.id, runs.c.config, runs.c.environment)
        full = {
            row.id: row
            for row in connection.execute(runs.select().with_only_columns(*columns).where(runs.c.id.in_(list(cards))))
        }
        summaries = metric_summaries(connection, cards)
        evaluations = run_evaluations(connection, cards)
        drawn = curve_runs(connection, list(cards.values()))
        explored = explore_data(connection, {number: cards[number]["name"] for number in ids if number in cards})
    ids = [number for number in ids if number in cards]
    if len(ids) < 2:
        raise RequestError(404, "Fewer than two of these runs exist.", hint="Tick others in the list of runs.")
    settings = differing_values([dict(flatten_settings(full[number].config)) for number in ids])
    shared = _texts({key: each for key, each in settings.items() if ABSENT not in each})
    values: dict[str, Any] = {
        "sides": [_side(cards[number], index, ids) for index, number in enumerate(ids)],
        "runs": _with_settings(drawn, ids, shared),
        "groups": list(shared),
        "explore": explored,
        "panels": _panels([summaries.get(number, {}) for number in ids]),
        "scores": _scores([evaluations.get(number, {}) for number in ids]),
        "metrics": metrics([summaries.get(number, {}) for number in ids]),
        "settings": shared,
        "partial": _texts({key: each for key, each in settings.items() if ABSENT in each}),
        "environments": _texts(differing_values([_environment(full[number].environment) for number in ids])),
    }
    return layout.page(request, "compare.html", "runs", **values)


def _with_settings(
    drawn: Sequence[Mapping[str, Any]], ids: Sequence[int], settings: Mapping[str, Sequence[str]]
) -> list[dict[str, Any]]:
    """Return the runs in their order, each with its values of the settings that differ."""
    by_id = {each["id"]: each for each in drawn}
    return [
        {**by_id[number], "settings": {key: values[place] for key, values in settings.items()}}
        for place, number in enumerate(ids)
    ]


def metrics(summaries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the best value of each run per metric, and which runs are best.

    If it is unknown whether higher is better, the last values are compared without a best one.
    """
    table = []
    for name in dict.fromkeys(
        name for each in summaries for name in each if not panels.is_system(name) and not panels.is_learning_rate(name)
    ):
        higher = panels.higher_is_better(name)
        part = {True: "max", False: "min", None: "last"}[higher]
        values = [getattr(each[name], part) if name in each else None for each in summaries]
        best, direction = best_of(values, name)
        table.append({"name": name, "direction": direction, "values": values, "best": best})
    return table


def _scores(evaluations: Sequence[Mapping[str, RunEvaluation]]) -> list[dict[str, Any]]:
    """Return one row per evaluation and metric, with the score of each run and which runs are best."""
    keys = dict.fromkeys((name, metric) for each in evaluations for name in each for metric in each[name].scores)
    rows = []
    for name, metric in sorted(keys, key=lambda key: (key[0], key[1] == "loss")):
        scores = [each[name].scores.get(metric) if name in each else None for each in evaluations]
        best, direction = best_of([None if score is None else score.value for score in scores], metric)
        rows.append({"evaluation": name, "metric": metric, "scores": scores, "best": best, "direction": direction})
    return rows


def best_of(values: Sequence[float | None], metric: str) -> tuple[list[int], str]:
    """Return the indices of the best values, unless all are equal, and which values are best."""
    higher = panels.higher_is_better(metric)
    present = [value for value in values if value is not None]
    best = (max if higher else min)(present) if present and higher is not None else None
    winners = [index for index, value in enumerate(values) if value is not None and value == best]
    return (winners if len(winners) < len(present) else []), {True: "highest", False: "lowest", None: "last"}[higher]


def _panels(summaries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return plots of the metrics that at least two runs have, then the speed."""
    names = [name for each in summaries for name in each]
    shared = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    first = {name: next(each[name] for each in summaries if name in each) for name in shared}
    training = sorted((name for name in shared if not panels.is_system(name)), key=lambda name: "loss" not in name)
    speed = [name for name in shared if name == SPEED]
    return panels.single_panels([*training[:24], *speed], first)


def _side(card: dict[str, Any], index: int, ids: list[int]) -> dict[str, Any]:
    without = layout.link("/compare", run=[number for number in ids if number != card["id"]])
    return {**card, "colour": COLOURS[index % len(COLOURS)], "without": without}


def _environment(environment: Mapping[str, Any]) -> dict[str, Any]:
    return dict(flatten_settings({name: environment[name] for name in _ENVIRONMENT_KEYS if name in environment}))


def _texts(settings: Mapping[str, list[Any]]) -> dict[str, list[str]]:
    return {name: [setting_text(value) for value in values] for name, values in settings.items()}
