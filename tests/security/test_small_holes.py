"""Smaller attacks: open folders, line breaks, secrets in settings, markup, links, programs in the working folder."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from torch import nn

import clew
from clew import Client, Run
from clew.client.connection import Connection
from clew.client.server_proof import PATH as IDENTITY
from clew.client.server_proof import address_text, proof, token_digest
from clew.core.private_files import keep_compiled_code_private
from clew.errors import ConfigError, RunError
from clew.jobs.batch_script import check_one_line, slurm_directives
from clew.jobs.sites import BatchRequest, Site
from clew.runs import environment
from clew.runs.comparison import compare_runs
from clew.runs.comparison_page import write_comparison
from clew.runs.push import Pusher
from clew.runs.report import write_report
from clew.server.config import ServiceConfig
from clew.server.service import Service
from clew.settings import load_settings
from clew.storage import mask_secrets, models
from tests.cli import script
from tests.server.conftest import Live
from tests.server.test_records import make

MARKUP = "<img src=x onerror=alert(1)>"


def test_an_existing_folder_of_a_server_is_closed_to_others(tmp_path: Path) -> None:
    for name in ("artefacts", "logs"):
        (tmp_path / name).mkdir(mode=0o755)
    Service.open(ServiceConfig(folder=tmp_path)).close()
    assert {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("artefacts", "logs")} == {0o700}


def test_a_line_break_in_a_name_does_not_leave_the_comment() -> None:
    request = BatchRequest(name="first\ntouch attacked #")
    with pytest.raises(ConfigError, match=r"job-name 'clew-first\\ntouch attacked #': .*may not have line breaks"):
        slurm_directives(Site(name="here", scheduler="slurm"), request, "/jobs/first")
    with pytest.raises(ConfigError, match="output"):
        slurm_directives(Site(name="here", scheduler="slurm"), BatchRequest(), "/jobs/a\n#SBATCH --uid=0")
    check_one_line({"job-name": "clew-größe 1", "array": None})


def test_artefacts_follow_their_run_and_sharing_ends(person: Any, request: pytest.FixtureRequest) -> None:
    ada, bob = person("ada", group="sharers"), person("bob", group="sharers")
    number = make(ada, request.node.name)
    place = f"/api/v1/runs/{number}"
    assert ada.put(f"{place}/artefacts/a.txt", content=b"mine").status_code in (200, 201)

    def seen(user: httpx.Client) -> tuple[int, list[str]]:
        listed = user.get("/api/v1/artefacts").json()["items"]
        return user.get(place).status_code, [item["name"] for item in listed if item["run"] == number]

    assert seen(bob) == (404, [])
    assert ada.patch(place, json={"group": "sharers"}).status_code == 200
    assert seen(bob) == (200, ["a.txt"])
    assert bob.patch(place, json={"group": None}).status_code == 403
    person("bob", group="strangers-of-ada")
    assert bob.patch(place, json={"group": "strangers-of-ada"}).status_code == 403, "shared with people ada never named"
    assert bob.patch(place, json={"group": "sharers", "note": "good"}).status_code == 200, "nothing changes"
    assert ada.patch(place, json={"name": "renamed"}).json()["group_name"] == "sharers"
    assert ada.patch(place, json={"group": None}).status_code == 200
    assert seen(bob) == (404, []) and seen(ada) == (200, ["a.txt"])


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://me:hush@host/name",
        "redis://:hush@host/0",
        "https://me:hu@hush@host/a",
        "https://me:hu/hush@host/a",
        "https://hushhushhushhushhushhush@host/a.git",
        "https://host/a?password=hush",
        "https://host/a?x=1&passwd=hush&y=2",
        "https://host/a?access_token=hush",
        "https://host/a#id_token=hush",
        "https://host/a?api_key=hush",
        "https://host/a?client_secret=hush",
        "https://host/a?X-Amz-Signature=hush&X-Amz-Credential=hush&X-Amz-Security-Token=hush",
        "https://host/a?X-Goog-Signature=hush",
        "https://host/a?AWSAccessKeyId=hush",
        "https://host/a?sv=1&sig=hush",
        "host=db user=me password=hush dbname=x",
        "host=db password = 'hush hush'",
        "mssql://host/db;pwd=hush",
    ],
)
def test_every_form_of_a_secret_is_masked(text: str) -> None:
    masked = mask_secrets(text)
    assert "hush" not in masked and "***" in masked
    assert mask_secrets(masked) == masked


@pytest.mark.parametrize(
    "text",
    [
        "s3://bucket/keys/monkey=1/a.root",
        "http://host:8080/a@b",
        "root://me@host//store/a.root",
        "postgresql://me@host:5432/name",
        "rucio:scope:name?rse=SITE_DISK",
        "https://host/a?tree=events&page=2",
    ],
)
def test_what_is_no_secret_is_not_masked(text: str) -> None:
    assert mask_secrets(text) == text


def test_secrets_are_not_written_to_settings() -> None:
    with pytest.raises(ConfigError, match=r"tune.storage.*password"):
        load_settings(
            "tracking",
            ["tune.space={train.optimizer.lr: {log: [1e-4, 1e-1]}}", "tune.storage=postgresql://me:hush@host/x"],
        )
    loaded = load_settings("tracking", ["prepare.input=['https://host/a.h5?X-Amz-Signature=hush']"])
    assert loaded.prepare.input == ("https://host/a.h5?X-Amz-Signature=hush",), "it is read with the signature"
    assert "hush" not in json.dumps(loaded.data) and "a.h5" in json.dumps(loaded.data)


def _hostile(run: Run) -> None:
    """Put markup into everything of a run that its author chooses."""
    plots = next(path for path in run.plots.rglob("*.json"))
    drawn = json.loads(plots.read_text())
    drawn["layout"] |= {"height": f'1"{MARKUP}', "meta": {"task": MARKUP}}
    plots.write_text(json.dumps(drawn))
    manifest = json.loads(run.dataset_file.read_text())
    manifest["key"] = MARKUP
    manifest["inputs"][0] |= {"name": MARKUP, "sha256": MARKUP}
    manifest["splits"][MARKUP] = []
    run.dataset_file.write_text(json.dumps(manifest))
    records = run.records_folder / "rank-0.jsonl"
    records.write_text(records.read_text().replace('"status": "finished"', f'"status": "{MARKUP}"'))


def test_markup_of_a_run_does_not_reach_the_pages(run_copy: Run, tmp_path: Path) -> None:
    _hostile(run_copy)
    assert run_copy.state == MARKUP
    other = Run.open(shutil.copytree(run_copy.path, tmp_path / "other"))
    for page in (write_report(run_copy), write_comparison(compare_runs([run_copy, other]), tmp_path / "page.html")):
        text = page.read_text()
        body = text.partition("<body")[2].partition("</main>")[0]
        assert "&lt;img" in body and "<img" not in body
        assert "<img" not in text.partition("</main>")[2].partition("</script>")[0], "the data of the figures"
        policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
        assert policy is not None and "default-src 'none'" in policy[1] and "script-src 'sha256-" in policy[1]
        for code in re.findall(r"<script>(.*?)</script>", text, re.DOTALL):
            digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
            assert f"'sha256-{digest}'" in policy[1], "a script of clew is not allowed"


def test_push_does_not_follow_links_out_of_the_run(run_copy: Run, shared_server: Live, tmp_path: Path) -> None:
    (tmp_path / "private").write_text("precious")
    (run_copy.plots / "stolen.json").symlink_to(tmp_path / "private")
    (run_copy.code_folder / "folder").symlink_to(tmp_path)
    first = (run_copy.records_folder / "rank-0.jsonl").read_text()
    (run_copy.records_folder / "rank-0.jsonl").write_text(first.replace('"time": ', '"time": 1', 1))  # another run
    with Connection(shared_server.url, shared_server.token, retry_seconds=5.0) as link:
        pusher = Pusher(run_copy, link)
        pusher.push()
        assert pusher.push_files() > 3
        names = [each["name"] for each in link.pages(f"/runs/{pusher.number}/artefacts")]
    assert not [name for name in names if "stolen" in name or "folder" in name]


@pytest.mark.parametrize("name", ["environment.json", "config.yaml", "dataset.json", "records/rank-7.jsonl", "records"])
def test_push_refuses_a_run_whose_files_are_links(
    name: str, run_copy: Run, tmp_path: Path, shared_server: Live
) -> None:
    file, private = run_copy.path / name, tmp_path / "private"
    if file.exists():
        file.rename(private)
    else:
        private.write_text('{"seq": 0, "time": 1.0, "kind": "note", "text": "precious"}\n')
    file.symlink_to(private)
    with Connection(shared_server.url, shared_server.token) as link, pytest.raises(RunError, match="is not sent"):
        Pusher(run_copy, link).push()


def test_a_stored_model_does_not_hold_files_that_links_name(run_copy: Run, tmp_path: Path) -> None:
    (tmp_path / "private").write_text("precious")
    (run_copy.code_folder / "stolen.py").symlink_to(tmp_path / "private")
    (run_copy.path / "stolen.py").symlink_to(tmp_path / "private")
    (run_copy.plots / "stolen.json").symlink_to(tmp_path / "private")
    stored = models.store_model(run_copy, str(tmp_path / "models"), ("model", "all"))
    files = [path for path in Path(stored).rglob("*") if path.is_file()]
    assert len(files) > 3 and not [path for path in files if "precious" in path.read_text(errors="replace")]


class _HostileServer(BaseHTTPRequestHandler):
    """A server whose runs have streams of records with names that lead out of the folder."""

    protocol_version = "HTTP/1.1"
    stream = "../../../stolen"

    def do_GET(self) -> None:
        body: dict[str, Any] = {"id": 1, "config": {"recipe": "tracking"}, "environment": {}}
        body |= {"items": [{"seq": 0, "time": 1.0, "kind": "note"}], "next": None}
        if self.path.endswith("/streams"):
            body = {"next": {self.stream: 1}}
        if self.path.startswith(IDENTITY):
            address = address_text(*self.connection.getsockname())
            nonce = self.path.rpartition("nonce=")[2]
            body = {"address": address, "proof": proof(token_digest("clew_x"), nonce, address)}
        content = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def test_a_server_cannot_write_outside_of_the_folder_of_a_fetched_run(tmp_path: Path) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _HostileServer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with (
            Client(f"http://127.0.0.1:{server.server_address[1]}", "clew_x") as client,
            pytest.raises(RunError, match="outside of its folder"),
        ):
            client.runs.download(1, tmp_path / "a" / "b" / "run")
    finally:
        server.shutdown()
        server.server_close()
    assert not list(tmp_path.rglob("*.jsonl"))


def test_compiled_code_of_another_user_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default of torch is a folder in the folder for temporary files, whose name is known before."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    private = tmp_path / f"clew-{os.getuid()}"
    keep_compiled_code_private()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(private / "compiled")
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    private.chmod(0o777)  # as another user would make it
    x = np.ones((40, 2), np.float32)
    with pytest.raises(RunError, match="only you can enter"):
        clew.train(nn.Linear(2, 1), (x, x[:, :1]), output=tmp_path / "run", epochs=1, compile=True)


@pytest.mark.long
@pytest.mark.exec
def test_programs_in_the_working_folder_are_not_run(run_copy: Run, tmp_path: Path) -> None:
    """Helper processes of `clew`: the server of warm processes, supervisors, ranks."""
    hostile = tmp_path / "hostile"
    hostile.mkdir()
    for name in ("json", "numpy", "psutil", "torch", "clew", "h5py", "selectors"):
        (hostile / f"{name}.py").write_text(f"open({str(tmp_path / 'attacked')!r}, 'w')")
    outcome = script("evaluate", run_copy.path, "--split", "val", "--workers", "2", folder=hostile)
    assert outcome.code == 0, outcome
    assert not (tmp_path / "attacked").exists()


def test_git_runs_no_program_of_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "attack").write_text(f"#!/bin/sh\ntouch {tmp_path}/attacked\n")
    (tmp_path / "attack").chmod(0o755)
    author = ["-c", "user.name=a", "-c", "user.email=a@b.example"]
    for words in (["init", "-q"], ["add", "attack"], [*author, "commit", "-qm", "first"]):
        subprocess.run(["git", *words], check=True, capture_output=True, env={**os.environ, "HOME": str(tmp_path)})
    program = str(tmp_path / "attack")
    for name in ("core.fsmonitor", "filter.evil.clean", "filter.evil.process"):
        subprocess.run(["git", "config", name, program], check=True)
    subprocess.run(["git", "config", "filter.evil.required", "true"], check=True)
    (tmp_path / ".git" / "info" / "attributes").write_text("* filter=evil\n")
    assert len(environment.capture()["commit"]) == 40
    (tmp_path / "attack").write_text(f"{(tmp_path / 'attack').read_text()}# changed\n")
    assert len(environment.capture()["commit"]) == 41
    subprocess.run(["git", "config", "filter.a=b.clean", program], check=True)
    (tmp_path / ".git" / "info" / "attributes").write_text("* filter=a=b\n")
    assert environment.capture()["commit"] == ""
    assert not (tmp_path / "attacked").exists()
