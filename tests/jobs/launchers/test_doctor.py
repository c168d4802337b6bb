"""The doctor finds what a run needs, and says what is missing."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from clew.jobs import doctor
from clew.jobs.sites import Site
from tests.cli import clew, done


@pytest.fixture
def server() -> Iterator[str]:
    """A server that answers with a Date header."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as http_server:
        thread = threading.Thread(target=http_server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{http_server.server_port}"
        http_server.shutdown()
        thread.join()


def finding(folder: Path, name: str, site: Site | None = None, server: str | None = None) -> doctor.Finding:
    return next(each for each in doctor.examine(folder, site, server=server) if each.name == name)


def test_a_machine_that_runs_these_tests_passes_all_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLEW_SERVER", raising=False)
    monkeypatch.chdir(tmp_path)
    assert "locks: work in" in done("doctor")
    hosts = json.loads(done("doctor", "--json"))["hosts"]
    names = [each["name"] for each in hosts[0]["findings"]]
    expected = ["scheduler", "python", "torch", "gpu", "mpi", "locks", "space here", "ports", "service", "clock"]
    assert [name for name in names if name in expected] == expected
    assert not list(tmp_path.iterdir())


def test_a_missing_server_is_reported_and_the_clock_of_a_running_one_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: str
) -> None:
    monkeypatch.setenv("CLEW_SERVER", "http://127.0.0.1:9")
    outcome = clew("doctor", "--folder", tmp_path)
    assert outcome.code == 1 and "service: http://127.0.0.1:9 does not answer" in outcome.out
    assert "check CLEW_SERVER" in outcome.out
    assert finding(tmp_path, "service", server=server).verdict == "good"
    assert "the clock of the server" in finding(tmp_path, "clock", server=server).message


def test_a_missing_folder_and_a_full_disk_are_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = tmp_path / "gone"
    assert {finding(missing, name).verdict for name in ("locks", "space here")} == {"bad"}
    monkeypatch.setattr(doctor, "SPACE", 1e30)
    full = finding(tmp_path, "space here")
    assert full.verdict == "bad" and "clew cache prune" in full.advice


def test_a_site_with_missing_gpus_is_bad(tmp_path: Path) -> None:
    site = Site(name="alps", scheduler="slurm", gpus=400, scratch=str(tmp_path / "none"))
    gpu = finding(tmp_path, "gpu", site)
    assert gpu.verdict == "bad" and "400 in the profile of alps" in gpu.message and gpu.advice
    assert finding(tmp_path, "scratch", site).verdict == "bad"


def test_the_doctor_names_the_source_of_mpi(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    message = finding(tmp_path, "mpi").message
    assert message.startswith(("wheel of PyPI: ", "of the site: "))


def test_storage_that_nothing_can_read_is_bad(tmp_path: Path) -> None:
    assert doctor.storage(Site(scheduler="slurm", storage=str(tmp_path))).verdict == "good"
    assert doctor.storage(Site(scheduler="slurm", storage=str(tmp_path / "none"))).verdict == "bad"
    assert doctor.storage(Site(scheduler="slurm", storage="nosuch://place")).verdict == "bad"
