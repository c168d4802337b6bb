"""The page that submits a job."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query, Request, Response
from fastapi.responses import JSONResponse, RedirectResponse
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool

from clew.client.job import Submission
from clew.client.submission import job_processes
from clew.core.config import Document, with_defaults
from clew.core.validation_text import validation_text
from clew.errors import UserError
from clew.server.accounts.caller import Caller
from clew.server.api.dependencies import visible_row
from clew.server.dashboard import layout
from clew.server.dashboard.best_trial import best_trial_form
from clew.server.dashboard.earlier_job import earlier_job
from clew.server.dashboard.foreign_code import check_author
from clew.server.dashboard.login import form_values
from clew.server.dashboard.own_code import FILE_PREFIX, own_code, own_fields, uploaded_files
from clew.server.dashboard.submit_datasets import dataset_error, dataset_of, known_datasets
from clew.server.dashboard.submit_form import (
    KINDS,
    OWN,
    FormField,
    SubmitForm,
    field_errors,
    make_form,
    recipe_summary,
    shipped,
)
from clew.server.dashboard.submit_line import submit_line
from clew.server.database.tables import runs
from clew.server.jobs import actions
from clew.server.jobs.job_rows import job_detail
from clew.server.problems import RequestError, forbidden
from clew.server.studies.study_jobs import check_submission

router = layout.router()
_HELP = {
    "name": "Name of the job, and of the run, study or dataset that it makes: letters, digits, `_`, `.` and `-`.",
    "dataset": "Its key, a path on the machine of the agent, or a URL: `rucio:SCOPE:NAME`, `s3://`, `root://`.",
    "store": "Where model, report and metrics go at the end: `rucio:SCOPE:NAME?rse=SITE`, `s3://`, a full path.",
    "workers": "Processes that work together.",
    "cpus": "Cores per worker.",
    "gpus": "GPUs per worker.",
    "minutes": "Wall time in minutes; a job that takes longer is ended.",
    "nodes": "Nodes; the workers are distributed over them.",
    "memory_gb": "Memory per worker, in GB; a job whose workers together use more is ended.",
    "priority": "-100 to 100; a job with a higher priority starts first.",
    "requeue": "How often it returns to the queue after it stopped early or its agent was lost.",
    "group": "A group whose agents may run it, in addition to your own.",
    "container": "Image that it runs in: a `.sif` file, a name or a URL. Empty: none, or the site's.",
}
_SUBMIT_KINDS = (*KINDS, "script")
_NEEDS_DATASET = ("train", "tune")
_MAIN_FIELDS = 5
"""Fields of the job that are always visible."""
_TRIALS_HELP = "Every trial, or pack of trials, is a job that any of your agents may take. The resources are for one."
_TRIALS = "trials_as_jobs"
_DEFAULTS = {"nodes": "1", "workers": "1", "cpus": "1", "gpus": "0", "priority": "0", "requeue": "0"}
_NUMBERS = ("nodes", "workers", "cpus", "gpus", "memory_gb", "minutes", "priority", "requeue")
_SCHEMA_KEYS = {
    "nodes": "resources.nodes",
    "workers": "resources.workers",
    "cpus": "resources.cpus",
    "gpus": "resources.gpus",
    "memory_gb": "resources.memory",
    "minutes": "resources.wall_time",
    "container": "resources.container",
}
"""Keys of the submission, by field of the form."""
_MAX_FIELD_LENGTH = 20_000
"""Characters of a field, because parsing YAML is slow."""


@router.get("/submit")
def submit_page(
    request: Request,
    viewer: layout.Viewer,
    kind: layout.Phrase = "train",
    recipe: layout.Phrase = "tracking",
    like: Annotated[int | None, Query(ge=1, le=2**63 - 1)] = None,
    job: Annotated[int | None, Query(ge=1, le=2**63 - 1)] = None,
    study: Annotated[int | None, Query(ge=1, le=2**63 - 1)] = None,
) -> Response:
    """The form, with defaults or with the settings of an earlier run (`like`) or job, or the best trial of a study."""
    values: dict[str, str] = {}
    settings: dict[str, Any] = {}
    with request.app.state.service.database.read() as connection:
        if like is not None:
            row = visible_row(connection, runs, like, viewer, "run")
            settings, recipe = row.config or {}, row.recipe
            check_author({**settings, "recipe": recipe}, own=row.owner == viewer.user)
            values = {"job.name": row.name, "job.dataset": dataset_of(row.config)}
        elif job is not None:
            earlier = job_detail(connection, viewer, job)
            check_author(earlier.spec, earlier.files, own=earlier.owner == viewer.name)
            kind, recipe, settings, values = earlier_job(earlier)
        elif study is not None:
            kind, recipe, settings, values = best_trial_form(connection, viewer, study)
    form = _form(kind, recipe)
    form.fill_from(settings)
    return _page(request, viewer, form, values)


@router.post("/submit/check")
async def check(request: Request, viewer: layout.Viewer) -> Response:
    """Return the errors and the YAML of the form as it is now."""
    return JSONResponse(await run_in_threadpool(_check_form, request, viewer, await _form_values(request, viewer)))


@router.post("/submit")
async def submit(request: Request, viewer: layout.Viewer) -> Response:
    """Check the form like a settings file, and submit the job."""
    return await run_in_threadpool(_submit_form, request, viewer, await _form_values(request, viewer))


async def _form_values(request: Request, viewer: Caller) -> dict[str, str]:
    if "submit" not in viewer.scopes:
        raise forbidden("this session lacks the scope submit")
    values = await form_values(request)
    for key, value in values.items():
        if not key.startswith(FILE_PREFIX) and len(value) > _MAX_FIELD_LENGTH:
            raise RequestError(
                422, f"{key[:100]}: longer than {_MAX_FIELD_LENGTH:,} characters", hint="submit it as a file"
            )
    return values


def _check_form(request: Request, viewer: Caller, values: dict[str, str]) -> dict[str, Any]:
    form, fields = _read(values)
    document, job = _checked(request, viewer, form, fields, values)
    errors = {**field_errors(form.fields().values()), **field_errors(fields)}
    line = submit_line(job, document) if document is not None and job is not None else ""
    return {"text": form.yaml(), "fields": errors, "error": form.error, "line": line}


def _submit_form(request: Request, viewer: Caller, values: dict[str, str]) -> Response:
    form, fields = _read(values)
    document, job = _checked(request, viewer, form, fields, values)
    if document is None or job is None:
        error = form.error or "Not submitted: see the fields in red."
        return _page(request, viewer, form, values, fields, error=error, status=422)
    try:
        check_submission(job)
        number = request.app.state.service.write(lambda transaction: actions.submit(transaction, viewer, job))
    except RequestError as error:
        message = f"{error}. {error.hint}"
        return _page(request, viewer, form, values, fields, error=message, status=error.status)
    return RedirectResponse(f"/jobs/{number}", 303)


def _checked(
    request: Request, viewer: Caller, form: SubmitForm, fields: list[FormField], values: dict[str, str]
) -> tuple[dict[str, Any] | None, Submission | None]:
    """Return the settings and the job; None for what has errors, which the fields and the form then have."""
    document = form.check()
    if form.kind in _NEEDS_DATASET:
        dataset = next(each for each in fields if each.name == "dataset")
        with request.app.state.service.database.read() as connection:
            dataset.error = dataset_error(connection, viewer, dataset.value)
    return document, _submission(form, fields, values)


def _form(kind: str, recipe: str) -> SubmitForm:
    if kind not in _SUBMIT_KINDS:
        raise RequestError(404, "there is no such kind of job")
    try:
        form = make_form(recipe, kind)
    except UserError as error:
        raise RequestError(404, str(error), hint="choose `own` for a recipe of your own") from None
    for section in form.sections:  # the job names its dataset
        section.fields = [field for field in section.fields if field.key != "train.dataset"]
    return form


def _read(values: dict[str, str]) -> tuple[SubmitForm, list[FormField]]:
    form = _form(values.get("kind", "train"), values.get("recipe", ""))
    form.fill(values)
    return form, _all_fields(form, values)


def _all_fields(form: SubmitForm, values: dict[str, str]) -> list[FormField]:
    return [*_job_fields(form.recipe, form.kind, values), *own_fields(form, values)]


def _job_fields(recipe: str, form_kind: str, values: dict[str, str]) -> list[FormField]:
    fields = []
    for name, text in _HELP.items():
        if name == "workers" and form_kind != "script":
            continue  # a setting of the training, the study or the preparation
        kind: Any = "number" if name in _NUMBERS else "line"
        default = ("" if recipe == OWN else recipe) if name == "name" else _DEFAULTS.get(name, "")
        nullable = name in ("memory_gb", "minutes", "dataset", "store", "group", "container")
        value = values.get(f"job.{name}", default).strip()
        fields.append(FormField(f"job.{name}", kind, default, text, [], nullable, value))
    if form_kind == "tune":
        value = values.get(f"job.{_TRIALS}", "false")
        fields.append(FormField(f"job.{_TRIALS}", "flag", "false", _TRIALS_HELP, [], False, value))
    return fields


def _submission(form: SubmitForm, fields: list[FormField], values: dict[str, str]) -> Submission | None:
    """Return the job; None if there are errors, which the fields and the form then have."""
    by_name = {each.name: each for each in fields}
    code = own_code(form, fields, values)
    document = form.document()
    document = {**document, "tune": document.get("tune", {})} if form.kind == "tune" else document
    body: dict[str, Any] = {"kind": form.kind, "name": by_name["name"].value, "spec": document, **code}
    body |= {name: by_name[name].value or None for name in ("dataset", "store", "group")}
    body |= {name: by_name[name].value or 0 for name in ("priority", "requeue")}
    if _TRIALS in by_name:
        body[_TRIALS] = by_name[_TRIALS].value == "true"
        body["spec"] = with_defaults(Document(document), {"train": {"epochs": form.epochs}}).data  # pruners need it
    memory, minutes = _number(by_name["memory_gb"], 1e9), _number(by_name["minutes"], 60)
    body["resources"] = {
        "nodes": by_name["nodes"].value or 1,
        "workers": _workers(form, by_name),
        "cpus": by_name["cpus"].value or 1,
        "gpus": by_name["gpus"].value or 0,
        "memory": None if memory is None else int(memory),
        "wall_time": minutes,
        "container": by_name["container"].value or None,
    }
    try:
        job = Submission.model_validate(body)
    except ValidationError as error:
        for detail in error.errors():
            _assign_error(by_name, ".".join(map(str, detail["loc"])), validation_text(detail), form)
        return None
    return None if form.error or field_errors(fields) else job


def _workers(form: SubmitForm, fields: dict[str, FormField]) -> Any:
    """Return the number of processes of the job: that of its settings, as `clew submit` computes it."""
    if "workers" in fields:
        return fields["workers"].value or 1
    if form.settings is None:
        return 1
    if _TRIALS in fields and fields[_TRIALS].value == "true":
        return form.settings.tune.ranks  # type: ignore[attr-defined]
    nodes = fields["nodes"].value
    return max(job_processes(form.settings, form.kind), int(nodes) if nodes.isdecimal() else 1)


def _number(field: FormField, unit: float) -> float | None:
    if not field.value:
        return None
    try:
        return float(field.value) * unit
    except ValueError:
        field.error = "a number"
        return None


def _assign_error(fields: dict[str, FormField], where: str, message: str, form: SubmitForm) -> None:
    text = message.removeprefix("Value error, ")
    name = next((name for name, key in _SCHEMA_KEYS.items() if key == where), where)
    if name == "name":
        text = "a name is needed: letters, digits, _ . and -, beginning with a letter or digit"
    if name in fields:
        fields[name].error = fields[name].error or text
    else:
        form.error = form.error or f"{where}: {text}".removeprefix(": ")


def _page(
    request: Request,
    viewer: Caller,
    form: SubmitForm,
    values: dict[str, str],
    fields: list[FormField] | None = None,
    *,
    error: str = "",
    status: int = 200,
) -> Response:
    """Return the page; without `fields` they are made from the values."""
    fields = _all_fields(form, values) if fields is None else fields
    with request.app.state.service.database.read() as connection:
        datasets = known_datasets(connection, viewer)
    descriptions = {
        "train": "Train a model.",
        "tune": "Search settings.",
        "prepare": "Make a dataset from raw events.",
        "script": "Run a Python or shell script.",
    }
    script_fields = [each for each in fields if each.name in ("main", "arguments")]
    others = [each for each in fields if each not in script_fields]
    shown = {
        "datasets": datasets,
        "kinds": list(_SUBMIT_KINDS),
        "kind": form.kind,
        "kinds_help": descriptions[form.kind],
        "recipes": [OWN] if form.kind == "script" else [*shipped(), OWN],
        "recipe": form.recipe,
        "recipe_help": recipe_summary(form.recipe),
        "own": script_fields,
        "files": uploaded_files(values),
        "main_fields": others[:_MAIN_FIELDS],
        "more_fields": others[_MAIN_FIELDS:],
        "sections": form.sections,
        "yaml": form.yaml(),
        "error": error,
    }
    return layout.page(request, "submit.html", "submit", status=status, **shown)
