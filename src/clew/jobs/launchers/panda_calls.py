"""Calls panda-client in a process of its own: `python -m clew.jobs.launchers.panda_calls status|kill NUMBER`.

The client reads its environment when it is imported, prints to stdout, and may exit. The answer is the last line, one
JSON object.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

_ERRORS = ("pilot", "exe", "sup", "ddm", "brokerage", "jobDispatcher", "taskBuffer")
"""Parts of PanDA that report errors of a job."""
NO_ANSWER = "the PanDA server does not answer"


def _status(client: Any, number: int) -> dict[str, Any]:
    """Status, outputs and jobs of a task; {"error": ...} without an answer, {"missing": ...} for an unknown task."""
    code, answer = client.get_task_details_json(number)
    if code or answer is None:
        return {"error": NO_ANSWER}
    known, task = answer
    if not known:
        return {"missing": str(task)}
    code, details = client.getJediTaskDetails({"jediTaskID": number}, False, True)
    if code:
        return {"error": NO_ANSWER}
    code, jobs = client.get_job_descriptions(number)
    return {
        "status": str(details["status"]),
        "error_dialog": str(task.get("errorDialog") or ""),
        "outputs": [name for name in str(details["outDS"]).split(",") if name],
        "jobs": [_job(job) for job in ([] if code else jobs)],
    }


def _job(job: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": job["PandaID"],
        "status": str(job["jobStatus"]),
        "site": str(job.get("computingSite") or ""),
        "exit_code": job.get("transExitCode") or 0,
        "errors": [str(text) for name in _ERRORS if (text := job.get(f"{name}ErrorDiag"))],
    }


def _kill(client: Any, number: int) -> dict[str, Any]:
    code, answer = client.killTask(number)
    if code or answer is None:
        return {"error": NO_ANSWER}
    accepted, message = answer
    return {"accepted": bool(accepted), "message": str(message)}


_CALLS = {"status": _status, "kill": _kill}

if __name__ == "__main__":
    panda_client = importlib.import_module("pandaclient.Client")
    sys.stdout.write(json.dumps(_CALLS[sys.argv[1]](panda_client, int(sys.argv[2]))) + "\n")
