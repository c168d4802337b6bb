"""Studies over REST: trials of an external optimiser, and the upload of a study folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import clew
from clew import Client
from clew.client.job import Submission
from clew.client.trial import NewStudy
from clew.errors import ServerError
from clew.server.accounts.caller import Caller
from clew.server.accounts.users import add_user
from clew.server.config import ServiceConfig
from clew.server.jobs import actions
from clew.server.service import Service
from clew.server.studies.open_studies import OpenStudies
from clew.tuning.config import TuneConfig
from tests.server.conftest import Live

ClientFor = Callable[..., Client]
SPACE = {"x": {"uniform": [-10, 10]}, "y": {"uniform": [-10, 10]}}


def bowl(settings: Mapping[str, Any]) -> float:
    return float((settings["x"] - 3) ** 2 + (settings["y"] + 1) ** 2)


def test_an_optimiser_elsewhere_finds_the_minimum_in_twenty_trials(client_for: ClientFor) -> None:
    ada = client_for("ada")
    tune = {"space": SPACE, "trials": 20, "sampler": {"name": "cmaes", "seed": 3, "startup": 4}}
    study = ada.studies.make("bowl", tune)
    while request := ada.studies.ask(study.id):
        for each in request:
            assert ada.studies.tell(study.id, each.trial, bowl(each.settings), lease=each.lease)
    (best,) = ada.studies.best(study.id)
    assert best.values[0] < 2 < bowl({"x": 0, "y": 0})
    result = ada.studies.get(study.id)
    assert result.counts == {"complete": 20} and result.best[0]["number"] == best.number
    assert [each.number for each in ada.studies.trials(study.id)] == list(range(20))
    assert min(each.values[0] for each in ada.studies.trials(study.id)) == best.values[0]


def test_the_front_is_of_trials_with_all_values(person: Any) -> None:
    ada = person("ada")
    goals = [{"metric": "val/a", "direction": "minimize"}, {"metric": "val/b", "direction": "maximize"}]
    body = {"name": "front", "tune": {"space": SPACE, "trials": 9, "objective": goals}, "external": True}
    study = ada.post("/api/v1/studies", json=body).json()["id"]
    pairs: list[list[float]] = [[1, 1], [3], [2, 2], [2, 1], [1, 1], [], [1, 0], [4, 5], [0, 9, 1]]
    rows = [{"number": n, "state": "complete", "settings": {"x": 1.0}, "values": v} for n, v in enumerate(pairs)]
    assert ada.put(f"/api/v1/studies/{study}/trials", json={"trials": rows}).status_code == 204
    assert [each["number"] for each in ada.get(f"/api/v1/studies/{study}").json()["best"]] == [0, 2, 4, 7]


def test_a_repeated_result_counts_once_and_an_expired_lease_is_refused(client_for: ClientFor) -> None:
    ada = client_for("ada")
    study = ada.studies.make("leases", {"space": SPACE, "trials": 2}).id
    (first,) = ada.studies.ask(study, within=0.001)
    (again,) = ada.studies.ask(study, within=60)
    assert again.trial == first.trial and again.settings == first.settings
    with pytest.raises(ServerError, match=r"the lease .* is gone"):
        ada.studies.tell(study, first.trial, 1.0, lease=first.lease)
    assert ada.studies.tell(study, again.trial, 2.0, lease=again.lease)
    assert not ada.studies.tell(study, again.trial, 3.0)
    assert ada.studies.best(study)[0].values == (2.0,)


def test_bad_trials_are_pruned_and_invalid_ones_fail(client_for: ClientFor) -> None:
    ada = client_for("ada")
    tune = {"space": SPACE, "trials": 10, "pruner": {"name": "median", "startup": 1, "warmup": 0}}
    study = ada.studies.make("prune", tune, epochs=3).id
    good, bad, broken = ada.studies.ask(study, count=3)
    assert not ada.studies.report(study, good.trial, step=1, value=0.1)
    ada.studies.tell(study, good.trial, 0.1)
    assert ada.studies.report(study, bad.trial, step=1, value=9.0)
    ada.studies.tell(study, bad.trial, pruned=True)
    ada.studies.tell(study, broken.trial, float("nan"))
    states = {each.number: (each.state, each.reason) for each in ada.studies.trials(study)}
    assert [states[n][0] for n in range(3)] == ["complete", "pruned", "failed"]
    assert states[2][1] == "its objective is nan"
    with pytest.raises(ServerError, match="has ended"):
        ada.studies.report(study, bad.trial, step=2, value=1.0)


def test_several_objectives_give_a_front(client_for: ClientFor) -> None:
    ada = client_for("ada")
    goals = [{"metric": "val/loss"}, {"metric": "run/seconds"}]
    study = ada.studies.make("front", {"space": SPACE, "trials": 4, "objective": goals}).id
    for each, values in zip(ada.studies.ask(study, count=4), [(1, 4), (2, 2), (4, 1), (3, 3)], strict=True):
        ada.studies.tell(study, each.trial, values)
    assert [each.values for each in ada.studies.best(study)] == [(1, 4), (2, 2), (4, 1)]


def test_studies_are_visible_to_their_owner_and_group(client_for: ClientFor) -> None:
    ada, bob, eve = client_for("ada", group="tuners"), client_for("bob", group="tuners"), client_for("eve")
    private = ada.studies.make("own", {"space": SPACE}).id
    shared = ada.studies.make("shared", {"space": SPACE}, group="tuners").id
    assert bob.studies.ask(shared)
    for stranger, study in ((bob, private), (eve, private), (eve, shared)):
        with pytest.raises(ServerError, match="no such study"):
            stranger.studies.ask(study)
    assert not [each for each in eve.studies.list() if each.id in (private, shared)]


@pytest.mark.parametrize(
    ("tune", "response"),
    [
        ({"space": {}}, "name a space"),
        ({"space": SPACE, "storage": "postgresql://db/x"}, "no storage and no folds"),
        ({"space": {"x": {"uniform": [1, 0]}}}, "must be below"),
        ({"space": SPACE, "sampler": "guess"}, "Input should be"),
        ({"space": SPACE, "nonsense": 1}, "Extra inputs"),
        ({"space": {"x": {"choice": [1], "when": {"y": 1}}, "y": {"choice": [1], "when": {"x": 1}}}}, "cycle"),
    ],
    ids=["empty", "storage", "bounds", "sampler", "unknown", "circle"],
)
def test_bad_settings_get_one_line(client_for: ClientFor, tune: dict[str, Any], response: str) -> None:
    with pytest.raises(ServerError, match=response) as result:
        client_for("ada").studies.make("bad", tune)
    assert result.value.status == 422


def test_a_study_continues_after_a_restart_of_the_server(server: Live) -> None:
    with Client(server.url, server.token) as client:
        study = client.studies.make("lasting", {"space": SPACE, "trials": 3}).id
        (first,) = client.studies.ask(study)
        server.stop()
        server.start()
        assert client.studies.tell(study, first.trial, 1.0, lease=first.lease)
        assert [each.trial for each in client.studies.ask(study, count=5)] == [1, 2]


def test_a_studys_folder_is_brought_in(client_for: ClientFor, tmp_path: Path) -> None:
    ada = client_for("ada")
    config = TuneConfig.model_validate({"space": SPACE, "trials": 6, "sampler": {"name": "random", "seed": 1}})
    done = clew.tune(config, tmp_path / "study", function=bowl)
    number = ada.studies.push(tmp_path / "study")
    assert ada.studies.push(tmp_path / "study") == number, "bringing it in twice is bringing it in once"
    response = list(ada.studies.trials(number))
    assert [each.values for each in response] == [each.values for each in done.trials()]
    assert ada.studies.best(number)[0].number == done.best()[0].number
    with pytest.raises(ServerError, match="proposed elsewhere"):
        ada.studies.ask(number)


def test_every_job_has_its_own_study(tmp_path: Path) -> None:
    service = Service.open(ServiceConfig(folder=tmp_path / "service"))
    try:
        user = service.write(lambda transaction: add_user(transaction, "ada"))
        ada = Caller(user, "ada", admin=False, scopes=frozenset({"job"}), groups=frozenset(), token=0)
        job = Submission(kind="tune", name="same", spec={"recipe": "tagger", "tune": {}})
        for _ in range(2):
            service.write(lambda transaction: actions.submit(transaction, ada, job))
        values = NewStudy(name="same", tune=TuneConfig.model_validate({"space": SPACE}), external=True)
        callers = [replace(ada, job=job) for job in (1, 2, None)]
        studies = [[OpenStudies(service).make(each, values) for _ in range(2)] for each in callers]
        assert studies == [[1, 1], [2, 2], [3, 3]]
        for caller, (number, _) in zip(callers, studies, strict=True):
            OpenStudies(service).push(caller, number, ())
    finally:
        service.close()
