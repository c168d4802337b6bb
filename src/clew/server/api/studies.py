"""Routes for studies: create, list, propose trials (`ask`) and take their results (`tell`)."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from clew.client.trial import (
    AskRequest,
    AssignedTrial,
    IntermediateValue,
    NewStudy,
    PruneDecision,
    StudyDetail,
    StudyRow,
    TellReceipt,
    Trial,
    TrialList,
    TrialResult,
)
from clew.server.accounts.caller import Caller
from clew.server.api.dependencies import (
    PROBLEMS,
    After,
    Limit,
    Number,
    Reader,
    ResultPage,
    ServiceOf,
    Submitter,
    caller_with_scope,
)
from clew.server.api.fast_routes import BoundedRoute
from clew.server.studies import study_rows
from clew.server.studies.open_studies import OpenStudies

router = APIRouter(prefix="/api/v1", tags=["studies"], responses=PROBLEMS, route_class=BoundedRoute)
StudyWriter = Annotated[Caller, Depends(caller_with_scope("submit", "job"))]


def _open_studies(request: Request) -> OpenStudies:
    studies: OpenStudies = request.app.state.studies
    return studies


StudiesOf = Annotated[OpenStudies, Depends(_open_studies)]


@router.post("/studies", status_code=201)
def make_study(service: ServiceOf, studies: StudiesOf, caller: StudyWriter, body: NewStudy) -> StudyDetail:
    """Create a study here, or with `external` a place for a study that is pushed."""
    number = studies.make(caller, body)
    with service.database.read() as connection:
        return study_rows.study_detail(connection, caller, number)


@router.get("/studies")
def list_studies(service: ServiceOf, caller: Reader, limit: Limit = 100, after: After = None) -> ResultPage[StudyRow]:
    """List the studies that the caller may see, the newest first."""
    with service.database.read() as connection:
        rows = study_rows.list_studies(connection, caller, limit=limit + 1, before=after)
    return ResultPage(items=rows[:limit], next=rows[limit - 1].id if len(rows) > limit else None)


@router.get("/studies/{study}")
def get_study(service: ServiceOf, caller: Reader, study: Number) -> StudyDetail:
    """Return a study with its settings and its best trials."""
    with service.database.read() as connection:
        return study_rows.study_detail(connection, caller, study)


@router.get("/studies/{study}/trials")
def list_trials(
    service: ServiceOf, caller: Reader, study: Number, limit: Limit = 100, after: After = None
) -> ResultPage[Trial]:
    """List the trials of a study, in order of number."""
    with service.database.read() as connection:
        trials = study_rows.list_trials(connection, caller, study, limit=limit + 1, after=after)
    return ResultPage(items=trials[:limit], next=trials[limit - 1].number if len(trials) > limit else None)


@router.put("/studies/{study}/trials", status_code=204)
def push_trials(studies: StudiesOf, caller: StudyWriter, study: Number, body: TrialList) -> Response:
    """Save trials of an external study; trials sent before are replaced."""
    studies.push(caller, study, body.trials)
    return Response(status_code=204)


@router.post("/studies/{study}/ask")
def ask(studies: StudiesOf, caller: Submitter, study: Number, body: AskRequest) -> list[AssignedTrial]:
    """Propose trials. An empty answer means that the study has proposed all its trials."""
    return studies.ask(caller, study, body)


@router.post("/studies/{study}/report")
def report(studies: StudiesOf, caller: StudyWriter, study: Number, body: IntermediateValue) -> PruneDecision:
    """Record an intermediate value of a trial, and answer whether to prune it."""
    return PruneDecision(prune=studies.report(caller, study, body))


@router.post("/studies/{study}/tell")
def tell(studies: StudiesOf, caller: StudyWriter, study: Number, body: TrialResult) -> TellReceipt:
    """Record the result of a trial. If it is sent twice, the first one counts."""
    return TellReceipt(accepted=studies.tell(caller, study, body))


@router.get("/studies/{study}/best")
def best(service: ServiceOf, caller: Reader, study: Number) -> list[Trial]:
    """Return the best trial, or the Pareto front; none before a trial is complete."""
    with service.database.read() as connection:
        numbers = [row["number"] for row in study_rows.study_detail(connection, caller, study).best]
        pages = [study_rows.list_trials(connection, caller, study, limit=1, after=number - 1) for number in numbers]
    return [trial for page in pages for trial in page]
