"""The form that submits a job."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query, Request, Response
from fastapi.responses import JSONResponse, RedirectResponse
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool

from clew.client.job import Submission
from clew.errors import UserError
from clew.server.accounts.callers import Caller
from clew.server.api.dependencies import one
from clew.server.dashboard import layout
from clew.server.dashboard.login import form as sent
from clew.server.dashboard.submit_form import KINDS, Field, Form, make, messages, shipped, told
from clew.server.database.tables import runs
from clew.server.jobs import actions
from clew.server.problems import RefusedError, forbidden

router = layout.router()
_HELP = {
    "name": "Of the job, and of the run, study or dataset that it makes: letters, digits, `_`, `.` and `-`.",
    "dataset": "Its key, or a path on the machine that will run it.",
    "workers": "Processes that work together.",
    "cpus": "Cores per worker.",
    "gpus": "GPUs per worker.",
    "minutes": "Wall time; a job that takes longer is ended.",
    "memory_gb": "Per worker, in GB; a job whose workers together use more is ended.",
    "priority": "-100 to 100: the higher, the sooner.",
    "requeue": "How often it goes back to the queue when it stopped early or its machine was lost.",
    "group": "Whose machines may run it, beside your own.",
}
_DEFAULTS = {"workers": "1", "cpus": "1", "gpus": "0", "priority": "0", "requeue": "0"}
_NUMBERS = ("workers", "cpus", "gpus", "memory_gb", "minutes", "priority", "requeue")
_PLACES = {
    "workers": "resources.workers",
    "cpus": "resources.cpus",
    "gpus": "resources.gpus",
    "memory_gb": "resources.memory",
    "minutes": "resources.wall_time",
}
"""Where a message of the schema belongs that is about a part of it."""
_LONGEST = 20_000
"""Characters of a field: YAML is read slowly."""


@router.get("/submit")
def ask(
    request: Request,
    viewer: layout.Viewer,
    kind: layout.Phrase = "train",
    recipe: layout.Phrase = "tracking",
    like: Annotated[int | None, Query(ge=1, le=2**63 - 1)] = None,
) -> Response:
    """The form, at its defaults or filled in as an earlier run was."""
    given: dict[str, str] = {}
    source: dict[str, Any] = {}
    if like is not None:
        with request.app.state.service.database.read() as connection:
            row = one(connection, runs, like, viewer, "run")
        source, recipe, given = (
            row.config or {},
            row.recipe,
            {"job.name": row.name, "job.dataset": _dataset(row.config)},
        )
    form = _form(kind, recipe)
    form.fill_from(source)
    return _page(request, form, _job_fields(recipe, given), "")


@router.post("/submit/look")
async def look(request: Request, viewer: layout.Viewer) -> Response:
    """What the server makes of the form as it is now."""
    return JSONResponse(await run_in_threadpool(_looked, await _given(request, viewer)))


@router.post("/submit")
async def submit(request: Request, viewer: layout.Viewer) -> Response:
    """Check it as a file would be checked; then it is a job."""
    return await run_in_threadpool(_submitted, request, viewer, await _given(request, viewer))


async def _given(request: Request, viewer: Caller) -> dict[str, str]:
    if "submit" not in viewer.scopes:
        raise forbidden("this log-in may not submit jobs")
    found = await sent(request)
    for key, value in found.items():
        if len(value) > _LONGEST:
            raise RefusedError(422, f"{key[:100]}: longer than {_LONGEST:,} characters", do="submit it as a file")
    return found


def _looked(given: dict[str, str]) -> dict[str, Any]:
    form, fields = _read(given)
    form.check()
    _submission(form, fields, form.document())
    wrong = {**messages(form.fields().values()), **messages(fields)}
    return {"text": form.yaml(), "fields": wrong, "wrong": form.wrong}


def _submitted(request: Request, viewer: Caller, given: dict[str, str]) -> Response:
    form, fields = _read(given)
    document = form.check()
    made = _submission(form, fields, form.document())
    if document is None or made is None:
        return _page(request, form, fields, form.wrong or "Not submitted: see the fields in red.", status=422)
    try:
        number = request.app.state.service.write(lambda change: actions.submit(change, viewer, made))
    except RefusedError as error:
        return _page(request, form, fields, f"{error}. {error.do}", status=error.status)
    return RedirectResponse(f"/jobs/{number}", 303)


def _form(kind: str, recipe: str) -> Form:
    if kind not in KINDS:
        raise RefusedError(404, "there is no such kind of job")
    try:
        form = make(recipe, kind)
    except UserError as error:
        raise RefusedError(404, str(error), do="a recipe of your own is submitted with `clew submit`") from None
    for part in form.parts:  # the job names its dataset
        part.fields = [each for each in part.fields if each.key not in ("train.dataset",)]
    return form


def _read(given: dict[str, str]) -> tuple[Form, list[Field]]:
    form = _form(given.get("kind", "train"), given.get("recipe", ""))
    form.fill(given)
    return form, _job_fields(form.recipe, given)


def _job_fields(recipe: str, given: dict[str, str]) -> list[Field]:
    found = []
    for name, text in _HELP.items():
        kind: Any = (
            "number" if name in ("workers", "cpus", "gpus", "memory_gb", "minutes", "priority", "requeue") else "line"
        )
        default = recipe if name == "name" else _DEFAULTS.get(name, "")
        nullable = name in ("memory_gb", "minutes", "dataset", "group")
        value = given.get(f"job.{name}", default).strip()
        found.append(Field(f"job.{name}", kind, default, text, [], nullable, value))
    return found


def _submission(form: Form, fields: list[Field], document: dict[str, Any]) -> Submission | None:
    """The job, if it is right; else fields tell what is not."""
    given = {each.name: each for each in fields}
    document = {**document, "tune": document.get("tune", {})} if form.kind == "tune" else document
    body: dict[str, Any] = {"kind": form.kind, "name": given["name"].value, "spec": document}
    body |= {name: given[name].value or None for name in ("dataset", "group")}
    body |= {name: given[name].value or 0 for name in ("priority", "requeue")}
    memory, minutes = _number(given["memory_gb"], 1e9), _number(given["minutes"], 60)
    body["resources"] = {
        "workers": given["workers"].value or 1,
        "cpus": given["cpus"].value or 1,
        "gpus": given["gpus"].value or 0,
        "memory": None if memory is None else int(memory),
        "wall_time": minutes,
    }
    try:
        made = Submission.model_validate(body)
    except ValidationError as error:
        for detail in error.errors():
            _blame(given, ".".join(map(str, detail["loc"])), detail["msg"], form)
        return None
    return None if messages(fields) else made


def _number(field: Field, unit: float) -> float | None:
    if not field.value:
        return None
    try:
        return float(field.value) * unit
    except ValueError:
        field.wrong = "a number"
        return None


def _blame(given: dict[str, Field], where: str, message: str, form: Form) -> None:
    told = message.removeprefix("Value error, ")
    name = next((name for name, place in _PLACES.items() if place == where), where)
    if name == "name":
        told = "a name is needed: letters, digits, _ . and -, beginning with a letter or digit"
    if name in given:
        given[name].wrong = given[name].wrong or told
    else:
        form.wrong = form.wrong or f"{where}: {told}".removeprefix(": ")


def _dataset(config: dict[str, Any] | None) -> str:
    train = (config or {}).get("train", {})
    return str(train.get("dataset", "")) if isinstance(train, dict) else ""


def _page(request: Request, form: Form, fields: list[Field], wrong: str, *, status: int = 200) -> Response:
    words = {"train": "Train a model.", "tune": "Search settings.", "prepare": "Make a dataset from raw events."}
    values = {
        "kinds": list(KINDS),
        "kind": form.kind,
        "kinds_help": words[form.kind],
        "recipes": shipped(),
        "recipe": form.recipe,
        "recipe_help": told(form.recipe),
        "job_fields": fields,
        "sections": form.parts,
        "yaml": form.yaml(),
        "wrong": wrong,
    }
    return layout.page(request, "submit.html", "submit", status=status, **values)
