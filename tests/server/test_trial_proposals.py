"""The server proposes trials as jobs, in one process without HTTP."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from clew.client.agent_messages import AgentRegistration
from clew.client.job import Slots, Submission
from clew.server.accounts.caller import Caller
from clew.server.database.tables import jobs
from clew.server.jobs import actions, agents
from clew.server.service import Service
from clew.server.studies.open_studies import OpenStudies
from clew.server.studies.trial_proposals import advance_studies
from clew.tuning.study import Study
from tests.server.test_queue import ada, agent, database, job_state, poll, service

__all__ = ["ada", "database", "service"]


def submit_study(service: Service, caller: Caller, name: str) -> int:
    spec = {"recipe": "none", "tune": {"space": {"x": {"uniform": [0, 1]}}, "trials": 5}}
    submission = Submission(kind="tune", name=name, spec=spec, trials_as_jobs=True)
    return service.write(lambda transaction: actions.submit(transaction, caller, submission))


def test_a_trial_is_proposed_for_every_free_core(service: Service, ada: Caller) -> None:
    number, studies = agent(service, ada), OpenStudies(service)  # it offers two cores
    job = submit_study(service, ada, "bowl")
    advance_studies(service, studies)
    orders = poll(service, ada, number).orders
    assert [each.trials[0].trial for each in orders] == [0, 1]
    assert {each.kind for each in orders} == {"trial"} and {each.spec["recipe"] for each in orders} == {"none"}
    advance_studies(service, studies)
    assert not poll(service, ada, number, *((each.job, 1) for each in orders)).orders
    assert job_state(service, ada, job).state == "running"


def test_a_sampler_that_fails_ends_its_study_only(
    service: Service, ada: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = submit_study(service, ada, "bad"), submit_study(service, ada, "good")
    ask = Study.ask

    def fail_first(study: Study, owner: str) -> object:
        if study.folder.path.name == str(job_state(service, ada, bad).study):
            raise ValueError("no such distribution")
        return ask(study, owner)

    monkeypatch.setattr(Study, "ask", fail_first)
    advance_studies(service, OpenStudies(service))
    end = job_state(service, ada, bad)
    assert (end.state, end.reason) == ("failed", "its sampler failed: ValueError: no such distribution")
    assert job_state(service, ada, good).state == "waiting"


def test_an_agent_of_a_million_cores_does_not_make_the_other_studies_wait(service: Service, ada: Caller) -> None:
    registration = AgentRegistration(name="a", uid="00000000", slots=Slots(cpus=1_000_000))
    service.write(lambda transaction: agents.register_agent(transaction, ada, registration))
    tune = {"space": {"x": {"uniform": [0, 1]}}, "trials": 500, "sampler": "random"}
    submission = Submission(kind="tune", name="s", spec={"recipe": "none", "tune": tune}, trials_as_jobs=True)
    service.write(lambda transaction: actions.submit(transaction, ada, submission))
    studies, counts = OpenStudies(service), []
    for _ in range(2):
        advance_studies(service, studies)
        with service.database.read() as connection:
            query = sa.select(sa.func.count()).where(jobs.c.kind == "trial", jobs.c.state == "waiting")
            counts.append(connection.scalar(query))
    assert counts == [50, 100], "a part at a time"
