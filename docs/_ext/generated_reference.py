"""Directives for pages of the reference that are made from the code: `{clew-reference} commands` and others."""

from __future__ import annotations

import functools
import importlib
from typing import Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

SUBJECTS = {
    "commands": "command_reference:commands_markdown",
    "settings": "setting_reference:settings_markdown",
    "rest": "rest_reference:rest_markdown",
    "python": "python_reference:python_markdown",
}


@functools.cache
def reference(subject: str) -> str:
    """Return the Markdown of a subject of the reference."""
    module, _, name = SUBJECTS[subject].partition(":")
    return str(getattr(importlib.import_module(module), name)())


class ClewReference(SphinxDirective):
    """Inserts a part of the reference, with headings."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Called by Sphinx."""
        self.env.note_reread()  # the code may have changed, so the page is made in every build
        return self.parse_text_to_nodes(reference(self.arguments[0]), allow_section_headings=True)


def setup(app: Any) -> dict[str, Any]:
    """Called by Sphinx."""
    for subject in SUBJECTS:
        reference(subject)  # before autodoc, which sets typing.TYPE_CHECKING while it imports modules
    app.add_directive("clew-reference", ClewReference)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
