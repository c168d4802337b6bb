"""The dashboard: HTML pages, rendered on the server.

One module per section of the menu. `layout.py` has what all pages share, `render.py` the templates and static files.
"""

from __future__ import annotations

from fastapi import FastAPI

from clew.server.dashboard import (
    accounts,
    benchmarks,
    compare,
    data,
    demo_job,
    explore,
    jobs,
    login,
    overview,
    runs,
    studies,
    submit,
)


def mount(app: FastAPI) -> None:
    """Add the pages to the application. They are not part of the API schema."""
    app.state.study_figures = studies.StudyFigures()
    for part in (login, overview, runs, explore, compare, studies, jobs, submit, demo_job, data, benchmarks, accounts):
        app.router.routes += part.router.routes
