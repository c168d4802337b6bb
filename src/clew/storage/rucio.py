"""Rucio: a thin adapter over its client. Bytes go straight to and from the storage element, by the store it names.

A folder is a Rucio dataset. A file of it is called NAME.HASH.PATH, with `..` for `/` in the path and the first twelve
digits of its SHA-256: names in Rucio stand for the same bytes for ever, so another content gets another name. Datasets
that others made keep the names of their files.

Account, proxy and token are the Rucio client's affair (RUCIO_HOME, RUCIO_ACCOUNT, X509_USER_PROXY, ...).
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator, Mapping
from typing import Any

from clew.errors import DataError
from clew.storage import locations, store
from clew.storage.store import LocalFile, StoredFile, StoreWriter
from clew.storage.store_errors import error_kind

_READABLE = ("file", "root", "s3", "https", "http", "davs", "dav")
_WRITABLE = ("file", "root", "s3")
_PLAIN = {"davs": "https", "dav": "http"}
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_BETWEEN = ".."
MARK = "clew"
"""The key of metadata that says what a DID of clew's is."""


class RucioStore:
    """By rucio-clients."""

    wants: tuple[str, ...] = ("sha256", "md5", "adler32")

    def files(self, location: str) -> dict[str, StoredFile]:
        client = _client()
        scope, name, options = locations.parse_did(location)
        if not name:
            raise DataError(f"{location}: name a DID, as rucio:{scope}:NAME")
        try:
            kind = client.get_did(scope, name)["type"]
        except Exception as error:
            if error_kind(error) == "did":
                return {}
            raise
        asked = {"dids": [{"scope": scope, "name": name}], "rse_expression": options.get("rse")}
        found = {each["name"]: each for each in client.list_replicas(**asked)}
        # a file that lies nowhere is missing there, but not in the catalogue
        known = {
            each["name"]: {"pfns": {}, **each, **found.get(each["name"], {})} for each in client.list_files(scope, name)
        }
        if kind == "FILE":
            return {"": _held(each) for each in known.values()}  # noqa: B035 - there is one
        return {_path(each, name): _held(facts) for each, facts in known.items()}

    def read(self, held: StoredFile, start: int, stop: int) -> bytes:
        """From the first replica that answers."""
        if not held.replicas:
            raise DataError(f"{held.location}: no replica that clew can read ({', '.join(_READABLE)})")
        for place in held.replicas[:-1]:
            with contextlib.suppress(Exception):  # another replica has the same bytes
                return store.find_store(place).read(StoredFile(place, held.size), start, stop)
        place = held.replicas[-1]
        return store.find_store(place).read(StoredFile(place, held.size), start, stop)

    def remove(self, held: StoredFile) -> None:
        raise DataError(f"{held.location}: Rucio removes files by its rules; end the rule that keeps it")

    def checks(self, held: StoredFile) -> Mapping[str, str]:
        return held.checks

    def targets(self, location: str, files: Mapping[str, LocalFile]) -> dict[str, str]:
        scope, name, options = locations.parse_did(location)
        if not name:
            raise DataError(f"{location}: name a DID, as rucio:{scope}:NAME")
        query = f"?rse={_element(options)}"
        found = {}
        for path, given in files.items():
            inner = f"{name}.{given.sha256[:12]}.{path.replace('/', _BETWEEN)}" if path else name
            if not _NAME.fullmatch(inner):
                raise DataError(f"{path or name}: Rucio takes only letters, digits and . - _ in names")
            found[path] = f"{locations.RUCIO}{scope}:{inner}{query}"
        return found

    def writer(self, location: str, given: LocalFile, memory: dict[str, Any], part: int) -> StoreWriter:
        scope, name, options = locations.parse_did(location)
        client, element = _client(), options["rse"]
        known = client.lfns2pfns(element, [f"{scope}:{name}"], operation="write")
        place = _place(next(iter(known.values())))
        if locations.scheme(place) not in _WRITABLE:
            raise DataError(f"{element}: clew writes to {', '.join(_WRITABLE)}, not {locations.scheme(place)}")
        inner = store.find_store(place).writer(place, given, memory, part)
        return _Registering(client, inner, element, {"scope": scope, "name": name}, given)

    def publish(self, location: str, targets: Mapping[str, str], files: Mapping[str, LocalFile]) -> None:
        client = _client()
        scope, name, options = locations.parse_did(location)
        whole = {"scope": scope, "name": name}
        if "" not in targets:
            wanted = [
                dict(zip(("scope", "name"), locations.parse_did(each)[:2], strict=True)) for each in targets.values()
            ]
            with _known_already():
                client.add_dataset(scope, name)
            there = [{"scope": each["scope"], "name": each["name"]} for each in client.list_content(scope, name)]
            new = [each for each in wanted if each not in there]
            if new:
                client.attach_dids(scope, name, new)
            old = [each for each in there if each not in wanted and _path(each["name"], name) in targets]
            if old:
                client.detach_dids(scope, name, old)
        with _known_already():
            client.add_replication_rule([whole], 1, _element(options))


class _Registering:
    """Registers the replica once its bytes are there."""

    def __init__(self, client: Any, inner: StoreWriter, element: str, did: dict[str, str], given: LocalFile) -> None:
        self._client, self._inner, self._element, self._did, self._given = client, inner, element, did, given

    def write(self, number: int, offset: int, data: bytes) -> Any:
        return self._inner.write(number, offset, data)

    def close(self, receipts: Mapping[int, Any]) -> None:
        self._inner.close(receipts)
        given = self._given
        file = {**self._did, "bytes": given.size, "adler32": given.adler32, "md5": given.md5, "state": "A"}
        with _known_already():
            self._client.add_replicas(self._element, [file])

    def drop(self) -> None:
        self._inner.drop()


def describe(location: str, facts: Mapping[str, Any]) -> None:
    """Give a DID metadata, which `search` finds it by."""
    scope, name, _ = locations.parse_did(location)
    _client().set_metadata_bulk(scope, name, dict(facts))


def search(location: str, mark: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The datasets of a scope (or those whose name begins as the location's) marked so, with their metadata."""
    scope, name, _ = locations.parse_did(location)
    client = _client()
    filters = {MARK: mark, **({"name": f"{name.rstrip('*')}*"} if name else {})}
    for found in client.list_dids(scope, [filters], did_type="dataset"):
        yield f"{locations.RUCIO}{scope}:{found}", dict(client.get_metadata(scope, found, plugin="JSON"))


def _client() -> Any:
    try:
        from rucio.client import Client
    except ImportError as error:
        raise DataError(f"rucio: needs the Rucio client; pip install 'clew[rucio]' ({error})") from None
    quiet = logging.getLogger("clew.storage.rucio")
    quiet.disabled = True  # the client prints what it raises as well
    return Client(logger=quiet)


def _element(options: Mapping[str, str]) -> str:
    """The storage element to write to: the one named, or the only one there is."""
    if "rse" in options:
        return options["rse"]
    known = sorted(each["rse"] for each in _client().list_rses())
    if len(known) == 1:
        return str(known[0])
    raise DataError(f"say where it should lie: rucio:SCOPE:NAME?rse=SITE, one of {', '.join(known) or 'none'}")


def _held(found: Mapping[str, Any]) -> StoredFile:
    ordered = sorted(found["pfns"].items(), key=lambda item: item[1].get("priority", 0))
    usable = tuple(_place(url) for url, _ in ordered if url.partition(":")[0] in _READABLE)
    checks = {name: found[name] for name in ("adler32", "md5") if found.get(name)}
    location = f"{locations.RUCIO}{found['scope']}:{found['name']}"
    return StoredFile(location, int(found["bytes"]), found.get("adler32") or "", checks, usable)


def _place(url: str) -> str:
    """A physical name as a location of clew's."""
    kind, sign, rest = url.partition("://")
    return f"{_PLAIN.get(kind, kind)}{sign}{rest}"


def _path(file: str, dataset: str) -> str:
    """The path below its folder of a file of a dataset."""
    match = re.fullmatch(rf"{re.escape(dataset)}\.[0-9a-f]{{12}}\.(.+)", file)
    return match[1].replace(_BETWEEN, "/") if match else file.replace("/", "_")


@contextlib.contextmanager
def _known_already() -> Iterator[None]:
    """Within, what says that a thing is there already is no error."""
    try:
        yield
    except Exception as error:
        if type(error).__name__ not in (
            "DataIdentifierAlreadyExists",
            "DuplicateRule",
            "FileAlreadyExists",
            "Duplicate",
        ):
            raise
