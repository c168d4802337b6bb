"""Rucio. Names and replicas come from Rucio's client; the content is copied by the store of the replica.

A folder is a Rucio dataset. Its files are called NAME.HASH.PATH, with `..` instead of `/` in the path and the first
twelve digits of the SHA-256. A name in Rucio always means the same content, so changed content gets another name. The
files of datasets that were made by other tools keep their names.

The Rucio client finds account, proxy and token itself (RUCIO_HOME, RUCIO_ACCOUNT, X509_USER_PROXY, ...).
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
_HTTP_SCHEMES = {"davs": "https", "dav": "http"}
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_SEPARATOR = ".."
MARK = "clew"
"""Metadata key of the DIDs that clew wrote; the value is their kind."""


class RucioStore:
    """Rucio through the package rucio-clients."""

    required_checksums: tuple[str, ...] = ("sha256", "md5", "adler32")

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
        query = {"dids": [{"scope": scope, "name": name}], "rse_expression": options.get("rse")}
        replicas = {each["name"]: each for each in client.list_replicas(**query)}
        # a file without a replica is missing from list_replicas, but not from list_files
        catalogue = {
            each["name"]: {"pfns": {}, **each, **replicas.get(each["name"], {})}
            for each in client.list_files(scope, name)
        }
        if kind == "FILE":
            return {"": _stored_file(each) for each in catalogue.values()}  # noqa: B035 - there is one
        return {_relative_path(each, name): _stored_file(facts) for each, facts in catalogue.items()}

    def read(self, file: StoredFile, start: int, stop: int) -> bytes:
        """Read from the first replica that answers."""
        if not file.replicas:
            raise DataError(f"{file.location}: no replica that clew can read ({', '.join(_READABLE)})")
        for place in file.replicas[:-1]:
            with contextlib.suppress(Exception):  # another replica has the same bytes
                return store.find_store(place).read(StoredFile(place, file.size), start, stop)
        place = file.replicas[-1]
        return store.find_store(place).read(StoredFile(place, file.size), start, stop)

    def remove(self, file: StoredFile) -> None:
        raise DataError(f"{file.location}: Rucio removes files by its rules; end the rule that keeps it")

    def checksums(self, file: StoredFile) -> Mapping[str, str]:
        return file.checksums

    def targets(self, location: str, files: Mapping[str, LocalFile]) -> dict[str, str]:
        scope, name, options = locations.parse_did(location)
        if not name:
            raise DataError(f"{location}: name a DID, as rucio:{scope}:NAME")
        query = f"?rse={_storage_element(options)}"
        targets = {}
        for path, source in files.items():
            inner = f"{name}.{source.sha256[:12]}.{path.replace('/', _SEPARATOR)}" if path else name
            if not _NAME.fullmatch(inner):
                raise DataError(f"{path or name}: Rucio takes only letters, digits and . - _ in names")
            targets[path] = f"{locations.RUCIO}{scope}:{inner}{query}"
        return targets

    def writer(self, location: str, source: LocalFile, memory: dict[str, Any], part: int) -> StoreWriter:
        scope, name, options = locations.parse_did(location)
        client, element = _client(), options["rse"]
        urls = client.lfns2pfns(element, [f"{scope}:{name}"], operation="write")
        place = _location(next(iter(urls.values())))
        if locations.scheme(place) not in _WRITABLE:
            raise DataError(f"{element}: clew writes to {', '.join(_WRITABLE)}, not {locations.scheme(place)}")
        inner = store.find_store(place).writer(place, source, memory, part)
        return _RegisteringWriter(client, inner, element, {"scope": scope, "name": name}, source)

    def publish(self, location: str, targets: Mapping[str, str], files: Mapping[str, LocalFile]) -> None:
        client = _client()
        scope, name, options = locations.parse_did(location)
        dataset = {"scope": scope, "name": name}
        if "" not in targets:
            files_wanted = [
                dict(zip(("scope", "name"), locations.parse_did(each)[:2], strict=True)) for each in targets.values()
            ]
            with _ignore_existing():
                client.add_dataset(scope, name)
            attached = [{"scope": each["scope"], "name": each["name"]} for each in client.list_content(scope, name)]
            new = [each for each in files_wanted if each not in attached]
            if new:
                client.attach_dids(scope, name, new)
            old = [
                each for each in attached if each not in files_wanted and _relative_path(each["name"], name) in targets
            ]
            if old:
                client.detach_dids(scope, name, old)
        with _ignore_existing():
            client.add_replication_rule([dataset], 1, _storage_element(options))


class _RegisteringWriter:
    """Registers the replica after its content was written."""

    def __init__(self, client: Any, inner: StoreWriter, element: str, did: dict[str, str], source: LocalFile) -> None:
        self._client, self._inner, self._element, self._did, self._source = client, inner, element, did, source

    def write(self, number: int, offset: int, data: bytes) -> Any:
        return self._inner.write(number, offset, data)

    def close(self, receipts: Mapping[int, Any]) -> None:
        self._inner.close(receipts)
        source = self._source
        file = {**self._did, "bytes": source.size, "adler32": source.adler32, "md5": source.md5, "state": "A"}
        with _ignore_existing():
            self._client.add_replicas(self._element, [file])

    def drop(self) -> None:
        self._inner.drop()


def describe(location: str, facts: Mapping[str, Any]) -> None:
    """Set the metadata of a DID, by which `search` finds it."""
    scope, name, _ = locations.parse_did(location)
    _client().set_metadata_bulk(scope, name, dict(facts))


def search(location: str, mark: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The datasets of a scope (whose name starts with that of the location) with this mark, and their metadata."""
    scope, name, _ = locations.parse_did(location)
    client = _client()
    filters = {MARK: mark, **({"name": f"{name.rstrip('*')}*"} if name else {})}
    for dataset in client.list_dids(scope, [filters], did_type="dataset"):
        yield f"{locations.RUCIO}{scope}:{dataset}", dict(client.get_metadata(scope, dataset, plugin="JSON"))


def _client() -> Any:
    try:
        from rucio.client import Client
    except ImportError as error:
        raise DataError(f"rucio: needs the Rucio client; pip install 'clew[rucio]' ({error})") from None
    quiet = logging.getLogger("clew.storage.rucio")
    quiet.disabled = True  # the client logs every error that it raises
    return Client(logger=quiet)


def _storage_element(options: Mapping[str, str]) -> str:
    """The storage element to write to: the option `rse`, or the only existing one."""
    if "rse" in options:
        return options["rse"]
    elements = sorted(each["rse"] for each in _client().list_rses())
    if len(elements) == 1:
        return str(elements[0])
    raise DataError(f"choose a storage element: rucio:SCOPE:NAME?rse=SITE, one of {', '.join(elements) or 'none'}")


def _stored_file(entry: Mapping[str, Any]) -> StoredFile:
    ordered = sorted(entry["pfns"].items(), key=lambda item: item[1].get("priority", 0))
    usable = tuple(_location(url) for url, _ in ordered if url.partition(":")[0] in _READABLE)
    checks = {name: entry[name] for name in ("adler32", "md5") if entry.get(name)}
    location = f"{locations.RUCIO}{entry['scope']}:{entry['name']}"
    return StoredFile(location, int(entry["bytes"]), entry.get("adler32") or "", checks, usable)


def _location(url: str) -> str:
    """A physical file name of Rucio as a location of clew."""
    kind, sign, rest = url.partition("://")
    return f"{_HTTP_SCHEMES.get(kind, kind)}{sign}{rest}"


def _relative_path(file: str, dataset: str) -> str:
    """The path of a dataset's file relative to the folder that was written."""
    match = re.fullmatch(rf"{re.escape(dataset)}\.[0-9a-f]{{12}}\.(.+)", file)
    return match[1].replace(_SEPARATOR, "/") if match else file.replace("/", "_")


@contextlib.contextmanager
def _ignore_existing() -> Iterator[None]:
    """Ignore errors of Rucio that say that an object already exists."""
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
