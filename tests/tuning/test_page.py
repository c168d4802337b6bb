"""The page of a study in any state."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from clew.tuning.api import tune
from clew.tuning.report import write_report
from clew.tuning.study_cost import study_cost
from tests.tuning import study


def steps(values: Mapping[str, Any]) -> Iterator[float]:
    for number in range(6):
        time.sleep(0.002)  # costs are in milliseconds
        yield values["n"] + values["x"] + 1 / (1 + number)


def figures(page: Path) -> dict[str, Any]:
    text = page.read_text()
    (document,) = re.findall(r'<script type="application/json" id="figures">(.*?)</script>', text, re.DOTALL)
    return {each["layout"]["title"]["text"]: each for each in json.loads(document)}


def test_it_shows_the_search_the_parameters_and_the_costs(tmp_path: Path) -> None:
    names = {
        "x": {"uniform": [0, 1]},
        "n": {"choice": [1, 2, 3]},
        "a.b": {"log": [1, 8], "integer": True, "when": {"n": 1}},
    }
    new_study = study(tmp_path / "s", trials=30, space=names, pruner={"name": "median", "startup": 4})
    tune(new_study.config, new_study, function=steps)
    drawn = figures(write_report(new_study))
    assert set(drawn) >= {"History", "Importance of parameters", "Parallel coordinates (blue is better)", "All trials"}
    assert set(drawn) >= {"x (darker: later)", "n (darker: later)", "a.b (darker: later)", "Cost of each trial"}
    best = next(trace for trace in drawn["History"]["data"] if trace["name"] == "best so far")
    assert best["y"] == sorted(best["y"], reverse=True)
    curves = [trace for trace in drawn["All trials"]["data"] if trace["name"].startswith(("trial", "best"))]
    assert len(curves) == 30
    rows = drawn["When each trial ran"]["data"]
    numbers = [number for trace in rows for number in trace["y"]]
    assert numbers and len(set(numbers)) == len(numbers) and all(trace["width"] < 1 for trace in rows)  # no overlap
    spent = study_cost(new_study.snapshot())
    assert spent.saved > 0 and new_study.count()["pruned"] > 0
    assert "saved by pruning" in new_study.folder.report_file.read_text()


def test_several_objectives_have_a_front(tmp_path: Path) -> None:
    goals = [{"metric": "val/a", "direction": "minimize"}, {"metric": "run/seconds"}]
    new_study = study(tmp_path / "s", objective=goals)
    tune(new_study.config, new_study, function=lambda values: [values["x"], values["n"] - values["x"]])
    front = figures(write_report(new_study))["Pareto front"]["data"][1]
    assert len(front["x"]) == len(new_study.best())


def test_several_objectives_have_curves_of_the_first_and_no_trial_is_pruned(tmp_path: Path) -> None:
    new_study = study(
        tmp_path / "s", objective=[{"metric": "val/a", "direction": "minimize"}, {"metric": "run/seconds"}]
    )
    for number in range(6):
        trial = new_study.ask("me")
        assert trial is not None
        assert not any(new_study.report(trial.number, step, number + 1 / step) for step in (1, 2, 2, 3))
        new_study.tell(trial.number, [number, 6 - number])
    curves = figures(write_report(new_study))["All trials"]
    assert len([trace for trace in curves["data"] if len(trace["x"]) == 3]) == 6
    assert curves["layout"]["yaxis"]["title"]["text"] == "val/a"


def test_an_empty_study_and_one_of_failures_have_a_page(tmp_path: Path) -> None:
    new_study = study(tmp_path / "s", trials=2)
    assert "No trial is complete yet" in write_report(new_study).read_text()
    new_study.ask("me")
    new_study.tell(0, state="failed", reason="<b>wrong</b>")
    text = write_report(new_study).read_text()
    assert "&lt;b&gt;wrong" in text and "<b>wrong" not in text
