"""The part of the submit form for a user's own recipe or script: its files, its main file and its arguments."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from clew.client.job import MAX_CODE
from clew.server.dashboard.submit_form import OWN, FormField, SubmitForm

FILE_PREFIX = "file:"
"""How the name of a form's field begins that holds the text of an uploaded file."""
_HELP = {
    "main": "The file with the recipe or script. Empty: the only one.",
    "arguments": "Arguments of the script, as in a shell: `--lr 0.1`.",
}


def uploaded_files(values: Mapping[str, str]) -> dict[str, str]:
    """Return the texts of the uploaded files by name, with plain line ends: a browser sends others."""
    return {
        key.removeprefix(FILE_PREFIX): text.replace("\r\n", "\n")
        for key, text in values.items()
        if key.startswith(FILE_PREFIX)
    }


def own_fields(form: SubmitForm, values: Mapping[str, str]) -> list[FormField]:
    """Return the fields of a form for own code; none if it is for a recipe of clew."""
    if form.recipe != OWN:
        return []
    names = ["main", *(["arguments"] if form.kind == "script" else [])]
    return [
        FormField(f"job.{name}", "line", "", _HELP[name], nullable=True, value=values.get(f"job.{name}", "").strip())
        for name in names
    ]


def own_code(form: SubmitForm, fields: list[FormField], values: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of a submission that own code adds, and set the recipe's file in the form.

    What is missing or wrong becomes an error of the form or of its fields.
    """
    if form.recipe != OWN:
        return {}
    files, by_name = uploaded_files(values), {each.name: each for each in fields}
    main = by_name["main"]
    name = main.value or (next(iter(files)) if len(files) == 1 else "")
    if not files:
        form.error = form.error or "choose the file of your recipe or script"
    elif name not in files:
        main.error = "one of the chosen files" if main.value else "several files: which one is the recipe or script?"
    elif form.kind != "script" and not name.endswith(".py"):
        main.error = "a recipe is a Python file (.py)"
    too_large = [file for file, text in files.items() if len(text) > MAX_CODE]
    if too_large:
        form.error = f"{too_large[0]}: more than {MAX_CODE // 1000} kB; put data where the agent can read it"
    if form.kind != "script":
        form.recipe_file = name
        return {"files": files}
    if by_name["dataset"].value:
        by_name["dataset"].error = "a script takes its data as arguments"
    try:
        words = shlex.split(by_name["arguments"].value)
    except ValueError as error:
        by_name["arguments"].error, words = str(error).lower(), []
    return {"files": files, "arguments": [name, *words]}
