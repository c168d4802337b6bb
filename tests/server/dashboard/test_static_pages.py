"""Every page that clew writes as a file: report, study, comparison, scaling, strategies, workload, in a browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clew import Run
from clew.bench.scaling import page as scaling_page
from clew.bench.scaling.forecast import forecast
from clew.bench.strategies import page as strategies_page
from clew.bench.strategies.results import StrategyGoal, StrategyRun, StrategyStudy
from clew.bench.workload import page as workload_page
from clew.runs.comparison import compare_runs
from clew.runs.comparison_page import write_comparison
from clew.runs.report import write_report
from clew.tuning.api import tune
from clew.tuning.report import write_report as write_study
from tests.bench import test_scale, test_workload
from tests.server.dashboard.test_accessible import violations
from tests.tuning import study

_LARGEST = 1_500_000
_DRAWN = "() => [...document.querySelectorAll('[data-figure]')].every(place => place.data)"


def report(run: Run, folder: Path) -> Path:
    return write_report(run)


def comparison(run: Run, folder: Path) -> Path:
    other = Run.create(folder / "other", config=run.config().data, environment=run.environment())
    (other.records_folder / "rank-0.jsonl").write_bytes((run.records_folder / "rank-0.jsonl").read_bytes())
    return write_comparison(compare_runs([run.path, other.path]), folder / "compare.html")


def study_page(run: Run, folder: Path) -> Path:
    space = {"x": {"uniform": [0, 1]}, "n": {"choice": [1, 2, 3]}}
    opened = study(folder / "study", trials=12, space=space)
    tune(
        opened.config, opened, function=lambda values: (values["n"] + values["x"] + 1 / (1 + each) for each in range(4))
    )
    return write_study(opened)


def scaling(run: Run, folder: Path) -> Path:
    sizes = [test_scale.trained(1, 1e-2), test_scale.trained(2, 6e-3, 1e-3), test_scale.trained(4, 4e-3, 1e-3)]
    result = test_scale.study(*sizes)
    result.forecasts["allreduce"] = forecast(result.trainings, [8], weak=False)
    return scaling_page.write(result, folder / "scale.html")


def workload(run: Run, folder: Path) -> Path:
    result = test_workload.result(test_workload.attempt(), test_workload.attempt(seed=1), epochs=3)
    return workload_page.write(result, folder / "workload.html")


def strategies(run: Run, folder: Path) -> Path:
    curve = [(float(second), 0.8 + second / 100) for second in range(12)]
    runs = [
        StrategyRun(name, bandwidth, f"runs/{name}-{bandwidth}", curve=curve, seconds=10.0, best=0.91)
        for name in ("allreduce", "easgd", "diloco")
        for bandwidth in ("1Gbit", "100Mbit")
    ]
    facts = {"recipe": "tracking", "workers": 2, "cores": 2, "when": "now"}
    goal = StrategyGoal("f1", "maximize", 0.9)
    result = StrategyStudy(goal, facts, runs[0], runs, {"1Gbit": 9.1e8, "100Mbit": 9.4e7})
    return strategies_page.write(result, folder / "study.html")


@pytest.mark.long
@pytest.mark.timeout(240)
@pytest.mark.parametrize("write", [report, comparison, study_page, scaling, strategies, workload])
def test_it_is_small_complete_readable_and_accessible(
    browser: Any, run_copy: Run, tmp_path: Path, write: Callable[[Run, Path], Path]
) -> None:
    path = write(run_copy, tmp_path)
    assert path.stat().st_size < _LARGEST
    for scheme in ("light", "dark"):
        context = browser.new_context(color_scheme=scheme, viewport={"width": 390, "height": 844})
        page = context.new_page()
        faults, requests = list[str](), list[str]()
        page.on("pageerror", lambda error, to=faults: to.append(str(error)))
        page.on("request", lambda request, to=requests: to.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_function(_DRAWN)
        assert violations(page) == [] and faults == []
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 390
        assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []  # it needs no network
        context.close()


@pytest.mark.parametrize("write", [report, comparison])
def test_every_plot_is_a_sketch_before_plotly_is_read(
    browser: Any, run_copy: Run, tmp_path: Path, write: Callable[[Run, Path], Path]
) -> None:
    path = write(run_copy, tmp_path)
    text = path.read_text()
    unread = path.with_name("unread.html")
    unread.write_text(text[: text.rindex("<script", 0, text.rindex("<script"))])  # without Plotly and what uses it
    count = "place => place.querySelectorAll('.sketch path[d]').length"
    sketches = f"() => [...document.querySelectorAll('[data-figure]')].map({count})"
    page = browser.new_page()
    page.goto(unread.as_uri())
    counts = page.evaluate(sketches)
    assert len(counts) > 5 and all(counts)
    page.goto(path.as_uri())
    page.wait_for_function(_DRAWN)
    assert not any(page.evaluate(sketches)), "Plotly's curves replace the sketches"
    page.close()
