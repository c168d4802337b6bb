"""Ask for trials and report results: one suite over every storage of trials."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from clew.core.config import to_data
from clew.core.file_lock import FileLock
from clew.errors import ConfigError, RunError
from clew.tuning.api import open_or_create, tune
from clew.tuning.config import PRUNERS, SAMPLERS, TuneConfig
from clew.tuning.study import Study
from tests.server import postgres
from tests.tuning import study


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    if postgres.why_not():
        pytest.skip(postgres.why_not())
    with postgres.running() as url:
        yield url


@pytest.fixture(params=["journal", "sqlite", "postgresql"])
def new_study(request: pytest.FixtureRequest, tmp_path: Path) -> Study:
    place = request.getfixturevalue("database") if request.param == "postgresql" else request.param
    return study(tmp_path / "study", storage=place)


def test_results_are_there_after_reopening(new_study: Study) -> None:
    for number in range(3):
        trial = new_study.ask("me")
        assert trial is not None and trial.number == number
        assert new_study.tell(number, trial.values["x"], seconds=2.0)
    again = Study.open(new_study.folder.path)
    assert [each.values for each in again.trials()] == [each.values for each in new_study.trials()]
    assert again.trials()[2].seconds == 2.0
    assert again.best()[0].values[0] == min(each.values[0] for each in new_study.trials())
    assert again.count() == {"waiting": 9, "running": 0, "complete": 3, "pruned": 0, "failed": 0}


@pytest.mark.slow
def test_no_more_trials_are_asked_for_than_configured(new_study: Study) -> None:
    assert [new_study.ask("me") is not None for _ in range(14)] == [True] * 12 + [False] * 2


def test_resuming_or_joining_does_not_repeat_proposals(new_study: Study) -> None:
    """The sampler has a seed: one that starts again with it would repeat its proposals."""
    first = [new_study.ask("me") for _ in range(3)]
    helper = Study.open(new_study.folder.path)
    others = [
        helper.ask("helper"),
        Study.open(new_study.folder.path).ask("me again"),
        helper.ask("helper"),
        new_study.ask("me"),
    ]
    values = [each.values["x"] for each in (*first, *others) if each is not None]
    assert len(set(values)) == len(values) == 7


def test_reporting_a_result_twice_changes_nothing(new_study: Study) -> None:
    new_study.ask("me")
    assert new_study.tell(0, 1.0)
    assert not new_study.tell(0, 2.0)
    assert new_study.trials()[0].values == (1.0,)


def test_a_value_that_is_not_a_number_is_a_failure(new_study: Study) -> None:
    new_study.ask("me")
    new_study.tell(0, math.nan)
    assert (new_study.trials()[0].state, new_study.trials()[0].reason) == ("failed", "its objective is nan")


def test_reports_are_stored_once(new_study: Study) -> None:
    new_study.ask("me")
    for value in (3.0, 4.0):
        assert not new_study.report(0, 1, value)
    new_study.tell(0, state="pruned", reason="hopeless")
    (trial,) = new_study.trials()
    assert (trial.state, trial.reports, trial.reason) == ("pruned", {1: 3.0}, "hopeless")
    with pytest.raises(RunError, match="has ended"):
        new_study.report(0, 2, 1.0)


def test_trials_of_a_dead_process_are_taken_over_once(new_study: Study) -> None:
    first, second = new_study.ask("dead"), new_study.ask("alive")
    assert new_study.take_over("heir", lambda owner: owner == "alive") == [first]
    assert new_study.take_over("heir", lambda owner: owner in ("alive", "heir")) == []
    assert second is not None and new_study.owner(second.number) == "alive"


def test_what_a_killed_process_was_writing_is_removed(new_study: Study) -> None:
    trial = new_study.ask("alive")
    assert trial is not None
    unfinished = new_study.folder.owners / f".{trial.number}.json.1-0123456789abcdef.tmp"
    unfinished.touch()
    assert new_study.take_over("heir", lambda owner: True) == []
    assert [path.name for path in new_study.folder.owners.iterdir()] == [f"{trial.number}.json"]


def test_a_trial_whose_process_was_killed_while_asking_is_completed(new_study: Study) -> None:
    new_study.optuna_study.ask()  # killed here: no value, no owner
    (trial,) = new_study.take_over("heir", lambda owner: True)
    assert set(trial.values) == {"x", "n"}
    assert new_study.tell(0, trial.values["x"])
    assert new_study.trials()[0].settings == trial.values


def test_an_expired_external_trial_is_assigned_to_the_next_request(new_study: Study) -> None:
    first = new_study.ask("external-1", within=0.01)
    time.sleep(0.02)
    assert new_study.ask("external-2", within=60) == first
    with pytest.raises(RunError, match="the lease external-1 is gone"):
        new_study.check_lease(0, "external-1")
    new_study.check_lease(0, "external-2")


def test_wrong_numbers_are_reported(new_study: Study) -> None:
    with pytest.raises(RunError, match="no trial 3; it has 0 trials"):
        new_study.tell(3, 1.0)
    new_study.ask("me")
    with pytest.raises(RunError, match="2 values for 1 objectives"):
        new_study.tell(0, [1.0, 2.0])


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_searches(tmp_path: Path, name: str) -> None:
    names = {"x": {"uniform": [0, 1], "step": 0.125}, "n": {"choice": [1, 2, 3]}}
    new_study = study(tmp_path / "study", sampler={"name": name, "seed": 1, "startup": 4}, space=names, trials=14)
    tune(new_study.config, new_study, function=lambda values: (values["x"] - 0.25) ** 2 + values["n"])
    assert new_study.count()["complete"] == 14
    assert len({json.dumps(each.settings) for each in new_study.trials()}) > 5


def test_a_grid_ends_with_its_last_point(tmp_path: Path) -> None:
    names = {"x": {"uniform": [0, 1], "step": 0.5}, "n": {"choice": [1, 2]}}
    new_study = study(tmp_path / "study", sampler="grid", space=names, trials=100)
    tune(new_study.config, new_study, function=lambda values: values["x"])
    assert len(new_study.trials()) == 6


@pytest.mark.parametrize("name", [each for each in PRUNERS if each != "none"])
def test_every_pruner_stops_bad_trials(tmp_path: Path, name: str) -> None:
    new_study = study(tmp_path / "study", trials=30, pruner={"name": name, "startup": 3, "reduction": 2, "warmup": 1})

    def steps(values: Mapping[str, Any]) -> Iterator[float]:
        for number in range(8):
            yield values["n"] + 0.3 * values["x"] + 1 / (1 + number)

    tune(new_study.config, new_study, function=steps)
    counts = new_study.count()
    assert counts["pruned"] > 0 and counts["complete"] > 0 and counts["pruned"] + counts["complete"] == 30
    assert new_study.best()[0].settings["n"] == 1


def test_several_objectives_have_a_front(tmp_path: Path) -> None:
    goals = [{"metric": "val/a", "direction": "minimize"}, {"metric": "val/b", "direction": "maximize"}]
    new_study = study(tmp_path / "study", objective=goals, sampler={"name": "nsga2", "population": 5}, trials=20)
    tune(
        new_study.config,
        new_study,
        function=lambda values: [values["x"] + 10 * values["n"], values["x"] - 10 * values["n"]],
    )
    front = new_study.best()
    assert {each.settings["n"] for each in front} == {1}
    assert all(each.settings["n"] > 1 for each in new_study.trials() if each not in front)


def test_a_function_that_fails_fails_its_trial(tmp_path: Path) -> None:
    new_study = study(tmp_path / "study", failures=12)

    def sometimes(values: Mapping[str, Any]) -> float:
        return float(1 / (values["n"] - 2))

    tune(new_study.config, new_study, function=sometimes)
    failed = [each for each in new_study.trials() if each.state == "failed"]
    assert {each.settings["n"] for each in failed} == {2}
    assert "ZeroDivisionError" in failed[0].reason


def test_one_failure_after_the_other_ends_the_study(tmp_path: Path) -> None:
    new_study = study(tmp_path / "study", failures=3)
    with pytest.raises(RunError, match="trials failed in a row: 3; the last one: KeyError"):
        tune(new_study.config, new_study, function=lambda values: values["y"])
    assert new_study.count()["failed"] == 3


def test_failures_are_counted_in_a_row(tmp_path: Path) -> None:
    calls = iter([True, True, False] * 4)

    def mostly_failing(values: Mapping[str, Any]) -> float:
        if next(calls):
            raise KeyError("on purpose")
        return 1.0

    new_study = study(tmp_path / "study", trials=12, failures=3)
    tune(new_study.config, new_study, function=mostly_failing)
    assert (new_study.count()["failed"], new_study.count()["complete"]) == (8, 4)


def test_a_study_continues_with_more_trials_and_refuses_another_space(tmp_path: Path) -> None:
    new_study = study(tmp_path / "study", trials=2)
    config = new_study.config.model_copy(update={"trials": 5})
    tune(config, tmp_path / "study", function=lambda values: values["x"])
    assert Study.open(tmp_path / "study").count()["complete"] == 5
    other = TuneConfig.model_validate({**to_data(config), "space": {"x": {"uniform": [0, 2]}}})
    with pytest.raises(ConfigError, match=r"tune\.space differs"):
        open_or_create(other, tmp_path / "study")


def test_importances_find_what_matters(tmp_path: Path) -> None:
    new_study = study(tmp_path / "study", trials=40)
    assert new_study.importances() == {}
    tune(new_study.config, new_study, function=lambda values: (values["x"] - 0.3) ** 2)
    assert next(iter(new_study.importances())) == "x"


def test_a_coordinator_on_a_lost_host_is_replaced_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clew.tuning.heartbeat.INTERVAL", 0.1)
    monkeypatch.setattr("clew.tuning.coordinator.TAKE_OVER_SECONDS", 0.1)
    new_study = study(tmp_path / "study", trials=2)
    (new_study.folder.coordinators / "gone").write_text(json.dumps({"process": "elsewhere 12 1.0", "since": 1.0}))
    assert new_study.ask("gone") is not None
    tune(new_study.config.model_copy(update={"lease_seconds": 0.5}), new_study, function=lambda values: 1.0)
    assert new_study.count()["complete"] == 2


def study_process(body: str) -> Callable[[Path], subprocess.Popen[str]]:
    """A process that opens a study as `new_study` and does something with it."""
    head = "import sys\nfrom clew.tuning.study import Study\nnew_study = Study.open(sys.argv[1])\n"
    code = head + textwrap.dedent(body)

    def start(path: Path) -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)

    return start


def test_processes_side_by_side_never_ask_for_too_many(tmp_path: Path) -> None:
    new_study = study(tmp_path / "study", trials=40)
    start = study_process(
        """
        while (trial := new_study.ask("me")) is not None:
            print(trial.number)
            new_study.tell(trial.number, trial.values["x"])
        """
    )
    each = [start(new_study.folder.path) for _ in range(3)]
    numbers = [int(word) for process in each for word in process.communicate(timeout=60)[0].split()]
    assert sorted(numbers) == list(range(40))
    assert Study.open(new_study.folder.path).count()["complete"] == 40


def test_a_torn_line_does_not_spoil_the_journal(tmp_path: Path) -> None:
    new_study = study(tmp_path / "study")
    new_study.ask("me")
    with (new_study.folder.path / "journal.log").open("ab") as file:
        file.write(b'{"op_code": 5, "wor')
    again = Study.open(new_study.folder.path)
    again.tell(0, 1.0)
    assert Study.open(new_study.folder.path).count()["complete"] == 1


def test_a_full_disk_ends_the_study_and_loses_nothing(tmp_path: Path) -> None:
    new_study = study(tmp_path / "study")
    start = study_process(
        """
        import resource, signal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        size = (new_study.folder.path / "journal.log").stat().st_size + 1500
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        try:
            while True:
                trial = new_study.ask("me")
                new_study.tell(trial.number, 0.5)
                print(trial.number, flush=True)
        except OSError as error:
            print("full:", error.strerror)
        """
    )
    *numbers, last = start(new_study.folder.path).communicate(timeout=60)[0].splitlines()
    assert last in ("full: File too large", "full: No space left on device")
    again = Study.open(new_study.folder.path)
    assert again.count()["complete"] == len(numbers) >= 1
    for trial in again.take_over("heir", lambda owner: False):
        again.tell(trial.number, 0.5)
    while (more := again.ask("me")) is not None:
        again.tell(more.number, 0.5)
    assert Study.open(new_study.folder.path).count()["complete"] == 12


def test_a_lock_of_a_dead_process_is_free_at_once(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "lock")
    code = (
        "import pathlib, sys; from clew.core.file_lock import FileLock; FileLock(pathlib.Path(sys.argv[1])).acquire()"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "lock")], check=True)
    assert (tmp_path / "lock").exists()
    with lock.held():
        pass
    assert not (tmp_path / "lock").exists()
