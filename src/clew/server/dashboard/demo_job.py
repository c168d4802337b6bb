"""The demo of an empty server: one click submits a job that trains on synthetic events."""

from __future__ import annotations

from fastapi import Request, Response
from fastapi.responses import RedirectResponse
from starlette.concurrency import run_in_threadpool

from clew.client.job import Submission
from clew.server.dashboard import layout
from clew.server.jobs import actions
from clew.server.problems import forbidden

router = layout.router()
_FILE = "demo.py"
_SCRIPT = '''"""Find tracks in synthetic events: generate, prepare, train, evaluate, and send the run to the server."""

from pathlib import Path

from clew.cli.start.demo import demo

if __name__ == "__main__":
    demo(output=Path("demo"), events=600, workers=1, epochs=6, seed=1, push=True)
'''


@router.post("/demo")
async def start_demo(request: Request, viewer: layout.Viewer) -> Response:
    """Submit the job, and show it."""
    if "submit" not in viewer.scopes:
        raise forbidden("this session lacks the scope submit")
    job = Submission(kind="script", name="demo", files={_FILE: _SCRIPT}, arguments=(_FILE,))
    service = request.app.state.service
    number = await run_in_threadpool(service.write, lambda transaction: actions.submit(transaction, viewer, job))
    return RedirectResponse(f"/jobs/{number}", 303)
