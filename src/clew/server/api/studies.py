"""Studies: ask and tell for optimisers elsewhere, and what was found."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from clew.client.trial import Ask, Asked, Heard, NewStudy, Reported, StudyFacts, StudyRow, Told, Trial, Trials, Verdict
from clew.server.accounts.callers import Caller
from clew.server.api.dependencies import PROBLEMS, After, Limit, Number, Page, Reader, ServiceOf, Submitter, needs
from clew.server.studies import study_rows
from clew.server.studies.open_studies import Studies

router = APIRouter(prefix="/api/v1", tags=["studies"], responses=PROBLEMS)
StudyPusher = Annotated[Caller, Depends(needs("submit", "job"))]


def _studies(request: Request) -> Studies:
    found: Studies = request.app.state.studies
    return found


StudiesOf = Annotated[Studies, Depends(_studies)]


@router.post("/studies", status_code=201)
def make_study(service: ServiceOf, opened: StudiesOf, caller: StudyPusher, body: NewStudy) -> StudyFacts:
    """Begin a study here, or with `elsewhere` make a place for one that is pushed."""
    number = opened.make(caller, body)
    with service.database.read() as connection:
        return study_rows.one(connection, caller, number)


@router.get("/studies")
def list_studies(service: ServiceOf, caller: Reader, limit: Limit = 100, after: After = None) -> Page[StudyRow]:
    """Those I see, newest first."""
    with service.database.read() as connection:
        found = study_rows.listed(connection, caller, limit=limit + 1, before=after)
    return Page(items=found[:limit], next=found[limit - 1].id if len(found) > limit else None)


@router.get("/studies/{study}")
def get_study(service: ServiceOf, caller: Reader, study: Number) -> StudyFacts:
    """One, with its settings and the best trial, or the front."""
    with service.database.read() as connection:
        return study_rows.one(connection, caller, study)


@router.get("/studies/{study}/trials")
def list_trials(
    service: ServiceOf, caller: Reader, study: Number, limit: Limit = 100, after: After = None
) -> Page[Trial]:
    """Its trials, in order of number."""
    with service.database.read() as connection:
        found = study_rows.outcomes(connection, caller, study, limit=limit + 1, after=after)
    return Page(items=found[:limit], next=found[limit - 1].number if len(found) > limit else None)


@router.put("/studies/{study}/trials", status_code=204)
def push_trials(opened: StudiesOf, caller: StudyPusher, study: Number, body: Trials) -> Response:
    """How trials of a study elsewhere stand; those sent before are replaced."""
    opened.push(caller, study, body.trials)
    return Response(status_code=204)


@router.post("/studies/{study}/ask")
def ask(opened: StudiesOf, caller: Submitter, study: Number, body: Ask) -> list[Asked]:
    """Trials to be done; an empty answer means that all were asked for."""
    return opened.ask(caller, study, body)


@router.post("/studies/{study}/report")
def report(opened: StudiesOf, caller: Submitter, study: Number, body: Reported) -> Verdict:
    """A first look at the objective of a trial; whether it is hopeless."""
    return Verdict(prune=opened.report(caller, study, body))


@router.post("/studies/{study}/tell")
def tell(opened: StudiesOf, caller: Submitter, study: Number, body: Told) -> Heard:
    """How a trial ended. Told twice, the first time counts."""
    return Heard(told=opened.tell(caller, study, body))


@router.get("/studies/{study}/best")
def best(service: ServiceOf, caller: Reader, study: Number) -> list[Trial]:
    """The best trial, or the front; none before one is complete."""
    with service.database.read() as connection:
        numbers = [each["number"] for each in study_rows.one(connection, caller, study).best]
        found = [study_rows.outcomes(connection, caller, study, limit=1, after=number - 1) for number in numbers]
    return [trial for each in found for trial in each]
