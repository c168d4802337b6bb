"""Against a real Rucio server on PostgreSQL: transfers of DIDs, metadata, faults, and the steps to a model."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from clew import storage
from clew.errors import DataError
from clew.runs import Run
from clew.storage import models, transfer
from tests.sites.conftest_rucio import PASSWORD, RSE, SCOPE, Rucio, add_element
from tests.sites.roundtrip import User, whole_way
from tests.sites.servers import small_disk

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLEW_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def did(rucio: Rucio, request: pytest.FixtureRequest) -> str:
    """A unique name for one test."""
    return f"rucio:{SCOPE}:{request.node.name}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, size in {"a.txt": 10, "inner/b.bin": 2 * transfer.PART + 1, "manifest.json": 3}.items():
        (tmp_path / "out" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "out" / name).write_bytes(os.urandom(size))
    return tmp_path / "out"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_folder_becomes_a_dataset_and_comes_back(did: str, folder: Path, tmp_path: Path) -> None:
    storage.copy(folder, did)
    assert storage.copy(folder, did).unchanged == 3
    storage.copy(did, tmp_path / "back")
    assert contents(tmp_path / "back") == contents(folder)
    from rucio.client import Client

    rules = list(Client().list_did_rules(SCOPE, did.rpartition(":")[2]))
    assert [rule["rse_expression"] for rule in rules] == [RSE]


def test_a_file_keeps_its_name_and_is_an_input(did: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello")
    storage.copy(tmp_path / "a.txt", f"{did}.txt?rse={RSE}")
    assert storage.expand(f"{did}.txt") == [f"{did}.txt"]
    assert storage.stat(f"{did}.txt").size == 5
    with storage.open_binary(f"{did}.txt") as stream:
        assert stream.read() == b"hello"


def test_other_content_takes_the_place_of_the_old(did: str, folder: Path, tmp_path: Path) -> None:
    storage.copy(folder, did)
    (folder / "a.txt").write_text("other")
    with pytest.raises(DataError, match="other content; use --replace"):
        storage.copy(folder, did)
    storage.copy(folder, did, replace=True)
    storage.copy(did, tmp_path / "back")
    assert contents(tmp_path / "back") == contents(folder)


def test_a_dataset_of_others_keeps_its_names(rucio: Rucio, did: str, tmp_path: Path) -> None:
    """A dataset that the client of Rucio uploaded."""
    from rucio.client import Client
    from rucio.client.uploadclient import UploadClient

    name = did.rpartition(":")[2]
    (tmp_path / "events.txt").write_text("1 2 3")
    file = {"path": str(tmp_path / "events.txt"), "rse": RSE, "did_scope": SCOPE, "did_name": f"{name}.events.txt"}
    UploadClient(Client()).upload([{**file, "dataset_scope": SCOPE, "dataset_name": name}])
    assert storage.expand(did) == [f"rucio:{SCOPE}:{name}.events.txt"]
    storage.copy(did, tmp_path / "back")
    assert contents(tmp_path / "back") == {f"{name}.events.txt": b"1 2 3"}


def test_what_clew_uploads_others_can_download(did: str, folder: Path, tmp_path: Path) -> None:
    """With the client of Rucio, which compares checksums too."""
    from rucio.client import Client
    from rucio.client.downloadclient import DownloadClient

    storage.copy(folder, did)
    request = {"did": did.removeprefix("rucio:"), "base_dir": str(tmp_path / "got")}
    got = DownloadClient(Client()).download_dids([request])
    assert {each["clientState"] for each in got} == {"DONE"}
    downloaded = sorted(contents(tmp_path / "got").values())
    assert downloaded == sorted(contents(folder).values())


def test_a_replica_that_went_bad_is_refused(rucio: Rucio, did: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("12345")
    storage.copy(tmp_path / "a", did)
    (held,) = rucio.disk.rglob(did.rpartition(":")[2])
    held.write_text("54321")
    with pytest.raises(storage.ChecksumMismatchError, match=r"checksum mismatch \(adler32"):
        storage.copy(did, tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_another_replica_is_read_if_one_is_lost(rucio: Rucio, did: str, tmp_path: Path) -> None:
    from rucio.client import Client

    (tmp_path / "a").write_text("12345")
    storage.copy(tmp_path / "a", did)
    client, (held,) = Client(), rucio.disk.rglob(did.rpartition(":")[2])
    other = add_element(client, "OTHER", tmp_path / "other")
    try:
        with pytest.raises(DataError, match=r"choose a storage element: .*, one of DISK, OTHER"):
            storage.copy(tmp_path / "a", f"{did}.more")
        storage.copy(tmp_path / "a", f"{did}.more?rse={other}")
        file = {"scope": SCOPE, "name": did.rpartition(":")[2], "bytes": 5, "adler32": "02f80100"}
        place = next(iter(client.lfns2pfns(other, [f"{SCOPE}:{file['name']}"], operation="write").values()))
        storage.copy(tmp_path / "a", place)
        client.add_replicas(other, [{**file, "state": "A"}])
        held.unlink()
        storage.copy(did, tmp_path / "b")
        assert (tmp_path / "b").read_text() == "12345"
    finally:
        client.delete_rse(other)


def test_a_transfer_cut_by_the_server_resumes(
    rucio: Rucio, did: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "TRIES", 1)

    def kill(state: storage.TransferProgress) -> None:
        if state.done >= transfer.PART and rucio.server.process is not None:
            rucio.server.kill()

    with pytest.raises(storage.StoreUnavailableError, match="does not answer"):
        storage.copy(folder, did, watch=kill, workers=1)
    rucio.server.start()
    assert storage.copy(folder, did).resumed > 0
    storage.copy(did, tmp_path / "back")
    assert contents(tmp_path / "back") == contents(folder)


def test_a_model_is_found_by_its_metadata(did: str, run: Run, tmp_path: Path) -> None:
    place = models.store_model(run, f"{did}?rse={RSE}", ("model", "plots", "report"))
    (match,) = models.find_models(did, "val_loss < 100 and test_loss < 100")
    assert match.location == place and match.facts["recipe"] == "tracking"
    assert match.facts["dids"] == [] and len(match.facts["config_hash"]) == 64
    assert models.find_models(did, "val_loss > 100") == []
    brought = models.fetch_model(place, tmp_path / "model")
    assert brought.checkpoint("best").read_bytes() == run.checkpoint("best").read_bytes()
    assert contents(tmp_path / "model" / "plots") == contents(run.plots)


def test_faults_are_one_line_and_exit_2(rucio: Rucio, did: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    user = User(tmp_path / "user", rucio.home())
    assert "no such DID" in user.fails("data", "get", did, "x")
    assert "no input file matches" in user.fails("prepare", "tracking", "--input", did)
    assert "no such scope" in user.fails("data", "put", str(tmp_path / "a"), "rucio:nowhere:a")
    assert "no such RSE" in user.fails("data", "put", str(tmp_path / "a"), f"{did}?rse=NOWHERE")
    wrong = User(tmp_path / "wrong", rucio.home("wrong", "not-the-password"))
    line = wrong.fails("data", "get", did, "x")
    assert "wrong credentials; see RUCIO_HOME" in line and "not-the-password" not in line
    assert PASSWORD not in line


def test_a_full_disk_is_reported_on_either_side(rucio: Rucio, did: str, folder: Path, tmp_path: Path) -> None:
    from rucio.client import Client

    user, big = User(tmp_path / "user", rucio.home()), folder / "inner" / "b.bin"
    with small_disk(tmp_path / "theirs") as server_disk:
        element = add_element(Client(), "SMALL", server_disk / "disk")
        try:
            line = user.fails("data", "put", str(big), f"{did}?rse={element}")
            assert f"{did}" in line and "cannot be written (no space left there; make room" in line
            assert not [path for path in server_disk.rglob("*") if path.is_file()]
            assert "no such DID" in user.fails("data", "get", did, "x")
        finally:
            Client().delete_rse(element)
    user.succeeds("data", "put", str(big), f"{did}?rse={RSE}")
    with small_disk(tmp_path / "ours") as ours:
        line = user.fails("data", "get", did, str(ours / "b.bin"))
        assert f"{ours / 'b.bin'}: cannot be written (no space left there; make room" in line
        assert not list(ours.iterdir())


def test_a_missing_permission_to_write_is_reported(rucio: Rucio, did: str, tmp_path: Path) -> None:
    from rucio.client import Client

    (tmp_path / "a").write_text("1")
    client = Client()
    client.add_account("reader", "USER", "nobody@localhost")
    client.add_identity("reader", "reader", "USERPASS", "nobody@localhost", password="reader-password")
    reader = User(tmp_path / "reader", rucio.home("reader", "reader-password", account="reader", username="reader"))
    line = reader.fails("data", "put", str(tmp_path / "a"), f"{did}?rse={RSE}")
    assert "cannot be written (no permission" in line and "reader-password" not in line
    storage.copy(tmp_path / "a", did)
    reader.succeeds("data", "get", did, "b")


def test_a_model_is_trained_stored_fetched_and_evaluated(rucio: Rucio, events: Path, tmp_path: Path) -> None:
    users = [User(tmp_path / name, rucio.home()) for name in ("one", "other")]
    whole_way(users[0], users[1], events, f"rucio:{SCOPE}:way.", f"rucio:{SCOPE}:way.models?rse={RSE}")
    facts = json.loads(users[1].succeeds("model", "find", f"rucio:{SCOPE}:way.models", "--json"))[0]
    assert f"{SCOPE}:way.dataset" in facts["dids"]
    assert any(name.startswith(f"{SCOPE}:way.events.") for name in facts["dids"])
