"""An emulated PanDA server on loopback, for the real panda-client.

It answers the calls that clew makes as panda-server 1.0.4 answers them (`pandaserver/api/v1`: paths, methods, the
envelope `{"success", "message", "data"}`, the words of errors), without its database. It stands in for the pilot too:
`run_job` unpacks the sandbox that the client uploaded and runs the command of the task in it.
"""

from __future__ import annotations

import base64
import email
import email.policy
import io
import json
import re
import shlex
import subprocess
import sys
import tarfile
import threading
import urllib.parse
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

_NOT_KILLED = (
    "finished",
    "done",
    "prepared",
    "broken",
    "tobroken",
    "aborted",
    "toabort",
    "aborting",
    "failed",
    "passed",
)
"""States in which panda-server rejects the command to kill a task."""


@dataclass
class EmulatedTask:
    """A task as the tables of JEDI hold it."""

    number: int
    parameters: dict[str, Any]
    status: str = ""
    """Empty until JEDI has registered it."""
    error_dialog: str = ""
    jobs: list[dict[str, Any]] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    """The jobs' reports by the number of the job."""
    aborting_seen: int = 0
    """How often its details were asked for since it was cancelled."""

    @property
    def outputs(self) -> list[str]:
        """The datasets that the task makes."""
        names = [
            str(each["dataset"]) for each in self.parameters["jobParameters"] if each.get("param_type") == "output"
        ]
        log = self.parameters.get("log", {}).get("dataset")
        return [*names, *([str(log)] if log else [])]

    @property
    def text(self) -> str:
        """The constant parameters of its jobs, as one text."""
        return " ".join(str(each["value"]) for each in self.parameters["jobParameters"] if each.get("value"))


class EmulatedPanda:
    """The server: its tasks, the files of its cache, and what JEDI and pilots would do."""

    def __init__(self) -> None:
        self.tasks: dict[int, EmulatedTask] = {}
        self.files: dict[str, bytes] = {}
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"panda": self}))
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which panda-client finds this server and its user."""
        url = f"http://127.0.0.1:{self.http.server_port}/server/panda"
        claims = {"sub": "me", "name": "Me", "preferred_username": "me", "groups": ["vo"]}
        token = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
        addresses = dict.fromkeys(("PANDA_URL", "PANDA_URL_SSL", "PANDACACHE_URL"), url)
        user = {"PANDA_AUTH": "oidc", "PANDA_AUTH_VO": "vo", "PANDA_AUTH_ID_TOKEN": f"e30.{token}.x"}
        return {**addresses, **user, "PANDA_BEHIND_REAL_LB": "1"}

    def close(self) -> None:
        """Stop answering."""
        self.http.shutdown()
        self.http.server_close()

    def set_status(self, number: int, status: str, job: str | None = None, **facts: Any) -> EmulatedTask:
        """Change the status of a task, and of its one job, as JEDI and a pilot do."""
        task = self.tasks[number]
        task.status = status
        if job is not None:
            fields = {"PandaID": 6000 + number, "jobStatus": job, "computingSite": "ANALY_GPU", **facts}
            task.jobs = [fields]
        return task

    def unpack(self, number: int, folder: Path) -> None:
        """Unpack the sandbox that the client uploaded with a task, if there is one."""
        folder.mkdir()
        archive = re.search(r"-a (jobO\.\S+)", self.tasks[number].text)
        if archive is not None:
            with tarfile.open(fileobj=io.BytesIO(self.files[archive[1]])) as sandbox:
                sandbox.extractall(folder, filter="data")

    def run_job(self, number: int, folder: Path) -> int:
        """Run the task's command as a pilot does: in a folder with its sandbox and nothing else."""
        task = self.tasks[number]
        self.unpack(number, folder)
        payload = re.search(r'-p "([^"]*)"', task.text)
        assert payload is not None
        words = shlex.split(urllib.parse.unquote(payload[1]))
        self.set_status(number, "running", "running")
        ended = subprocess.run([sys.executable, *words[1:]], cwd=folder, check=False, capture_output=True, text=True)
        report = folder / "userJobMetadata.json"
        if ended.returncode:
            diagnosis = ended.stderr.strip().splitlines()[-1]
            facts = {"transExitCode": str(ended.returncode), "exeErrorDiag": diagnosis}
            self.set_status(number, "failed", "failed", **facts)
        else:
            self.set_status(number, "done", "finished")
            task.metadata[str(task.jobs[0]["PandaID"])] = {"user_job_metadata": json.loads(report.read_text())}
        return ended.returncode


class _Handler(BaseHTTPRequestHandler):
    panda: EmulatedPanda

    def log_message(self, *words: Any) -> None:
        pass

    def do_GET(self) -> None:
        url = urllib.parse.urlparse(self.path)
        self._respond(url.path, "GET", dict(urllib.parse.parse_qsl(url.query)))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        kind = self.headers["Content-Type"]
        if kind.startswith("multipart/"):
            message = email.message_from_bytes(f"Content-Type: {kind}\n\n".encode() + body, policy=email.policy.default)
            (part,) = message.iter_parts()
            self._respond(self.path, "POST", {"name": part.get_filename(), "content": part.get_payload(decode=True)})
        else:
            self._respond(self.path, "POST", json.loads(body))

    def _respond(self, path: str, method: str, values: dict[str, Any]) -> None:
        calls: dict[str, tuple[str, Any]] = {
            "file_server/validate_cache_file": ("POST", lambda: (True, "", None)),
            "file_server/upload_cache_file": ("POST", lambda: self._upload(**values)),
            "task/submit": ("POST", lambda: self._submit(values["task_parameters"])),
            "task/kill": ("POST", lambda: self._kill(int(values["task_id"]))),
            "task/get_detailed_info": ("GET", lambda: self._detailed_info(int(values["task_id"]))),
            "task/get_details": ("GET", lambda: self._details(int(values["task_id"]))),
            "task/get_job_descriptions": ("GET", lambda: self._jobs(int(values["task_id"]))),
            "job/get_metadata_for_analysis_jobs": ("GET", lambda: self._metadata(int(values["task_id"]))),
        }
        expected, answer = calls[path.removeprefix("/api/v1/")]
        if not self.headers.get("Authorization", "").startswith("Bearer ") or not self.headers.get("Origin"):
            answer = lambda: (False, "SSL secure connection is required", None)  # noqa: E731
        elif method != expected:
            answer = lambda: (False, f"expecting {expected}, received {method}", None)  # noqa: E731
        success, message, data = answer()
        body = json.dumps({"success": success, "message": message, "data": data}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _upload(self, name: str, content: bytes) -> tuple[bool, str, Any]:
        self.panda.files[Path(name).name] = content
        return True, "", None

    def _submit(self, parameters: dict[str, Any]) -> tuple[bool, str, Any]:
        name = parameters["taskName"]
        for task in self.panda.tasks.values():
            if task.parameters["taskName"] == name:
                words = f"jediTaskID={task.number} is already queued for outDS={name}. "
                return False, words + "You cannot submit duplicated tasks. ", 1
        number = 40_000_001 + len(self.panda.tasks)
        self.panda.tasks[number] = EmulatedTask(number, parameters)
        return True, f"succeeded. new jediTaskID={number}", number

    def _kill(self, number: int) -> tuple[bool, str, Any]:
        task = self.panda.tasks.get(number)
        if task is None or not task.status:
            return False, f"jediTaskID={number} not found", 2
        if task.status in _NOT_KILLED:
            words = f"the kill command is not accepted if the task is in {task.status} status "
            return False, f"Command rejected: {words}", 4
        task.status = "aborting"
        return True, f"command=kill is registered for task ID {number}. will be executed in a few minutes", 0

    def _detailed_info(self, number: int) -> tuple[bool, str, Any]:
        task = self.panda.tasks.get(number)
        if task is None or not task.status:
            return False, "Task not found or error retrieving task info", None
        return True, "", {"jediTaskID": number, "status": task.status, "errorDialog": task.error_dialog or None}

    def _details(self, number: int) -> tuple[bool, str, Any]:
        task = self.panda.tasks[number]
        if task.status == "aborting":  # JEDI executes the command some time later
            task.aborting_seen += 1
            task.status = "aborting" if task.aborting_seen < 5 else "aborted"
        jobs = [job["PandaID"] for job in task.jobs]
        outputs = ",".join(task.outputs)
        facts = {"inDS": "", "outDS": outputs, "statistics": "", "PandaID": jobs, "mergeStatus": None}
        return True, "", {**facts, "mergePandaID": [], "status": task.status}

    def _jobs(self, number: int) -> tuple[bool, str, Any]:
        empty = {"transExitCode": None, "exeErrorDiag": None, "pilotErrorDiag": None}
        return True, "", [{**empty, **job} for job in self.panda.tasks[number].jobs]

    def _metadata(self, number: int) -> tuple[bool, str, Any]:
        return True, "", self.panda.tasks[number].metadata
