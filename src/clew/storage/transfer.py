"""Copies to and from stores: in parts, in parallel, checked by checksum, and resumable.

A download is written to `.NAME.clew-part` in the target folder, with the list of its complete parts in a JSON file. The
state of an upload is in the cache folder. A saved state is used only for the same content: if the source has changed,
the transfer starts again.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeVar

from clew.core.file_lock import hold_lock
from clew.core.private_files import open_own_part
from clew.errors import DataError
from clew.storage import store as stores
from clew.storage.checksums import DownloadChecksums, check_download, file_checksums, local_file, needed_checksums
from clew.storage.locations import base_name, is_url, local_path, mask_secrets, scheme
from clew.storage.store import LocalFile, Store, StoredFile
from clew.storage.store_errors import ChecksumMismatchError, StoreUnavailableError, one_line_errors
from clew.storage.transfer_state import ProgressCallback, TransferProgress, TransferState, cache_folder

PART = 8 << 20
WORKERS = 8
_HASHERS = 4
TRIES = 4
_MAX_PARTS = 9_000
"""S3 allows 10,000."""
_COMPLETION_FILES = ("manifest.json", "clew.json")
"""Files that are copied last: their presence means that the folder is complete."""
_T = TypeVar("_T")


def copy(
    source: str | Path,
    target: str | Path,
    *,
    watch: ProgressCallback | None = None,
    replace: bool = False,
    workers: int = WORKERS,
) -> TransferProgress:
    """Copy a file or a folder between any two locations. Files that already have the same content are skipped.

    A copy that was interrupted is resumed by calling this function again. Every file is checked by checksum before it
    gets its final name.

    Args:
        source: File or folder: a path or a URL.
        target: Where to copy it: a path or a URL.
        watch: Called with the progress after every part.
        replace: Overwrite a target with other content.
        workers: Number of parts transferred at the same time.

    Returns:
        The final progress.

    Raises:
        DataError: The source does not exist, permission is denied, the credentials are wrong, the disk is full, a
            checksum is wrong, or the target has other content and `replace` is false.
        StoreUnavailableError: A server does not answer.
    """
    source_text, target_text = str(source), str(target)
    if is_url(source_text) and is_url(target_text):
        with tempfile.TemporaryDirectory(dir=_make_folder(cache_folder() / "transfers")) as folder:
            intermediate = str(Path(folder) / base_name(source_text))
            copy(source_text, intermediate, workers=workers)
            return copy(intermediate, target_text, watch=watch, replace=replace, workers=workers)
    both_local = not is_url(source_text) and not is_url(target_text)
    if both_local and local_path(source_text).resolve() in local_path(target_text).resolve().parents:
        raise DataError(f"{source_text}: the copy {target_text} would lie inside of it; choose another target")
    transfer = _Transfer(watch or (lambda _: None), workers, replace)
    return (
        transfer.put(local_path(source_text), target_text)
        if is_url(target_text)
        else transfer.get(source_text, local_path(target_text))
    )


class _Transfer:
    """One transfer in either direction."""

    def __init__(self, watch: ProgressCallback, workers: int, replace: bool) -> None:
        self._watch, self._replace, self._workers = watch, replace, workers
        self._lock, self._state = threading.Lock(), TransferProgress()

    def get(self, source: str, target: Path) -> TransferProgress:
        with one_line_errors(source):
            store = stores.find_store(source)
            files = _with_retries(lambda: store.files(source), source)
        if not files:
            raise DataError(f"{mask_secrets(source)}: {_not_found_message(source)}")
        if target.is_dir() and "" in files:
            target = target / base_name(source)
        _check_inside(files, source)
        self._begin({name: file.size for name, file in files.items()})
        for stage in _stages(files):
            self._each(
                stage,
                lambda name, pool: self._download(store, files[name], target / name if name else target, pool),
            )
        return self._state

    def put(self, source: Path, target: str) -> TransferProgress:
        with one_line_errors(str(source)):
            stored = stores.find_store("").files(str(source))
            with ThreadPoolExecutor(_HASHERS) as pool:
                required = stores.find_store(target).required_checksums
                local_files = pool.map(lambda each: local_file(Path(each.location), required), stored.values())
                files = dict(zip(stored, local_files, strict=True))
        if not files:
            raise DataError(f"{source}: no such file, or an empty folder")
        if "" in files and target.endswith("/"):
            target += source.name
        with one_line_errors(target, "written"):
            store = stores.find_store(target)
            targets = store.targets(target, files)
            existing = _with_retries(lambda: store.files(target), target, "written")
        self._begin({name: each.size for name, each in files.items()})
        for stage in _stages(files):
            with one_line_errors(target, "written"):
                self._each(
                    stage, lambda name, pool: self._upload(store, files[name], targets[name], existing.get(name), pool)
                )
        with one_line_errors(target, "written"):
            _with_retries(lambda: store.publish(target, targets, files), target, "written")
        return self._state

    def _each(self, names: Sequence[str], move: Callable[[str, ThreadPoolExecutor], None]) -> None:
        """Transfer several files at the same time. The parts of all files share one pool of threads."""
        with ThreadPoolExecutor(self._workers) as parts, ThreadPoolExecutor(self._workers) as files:
            futures = [files.submit(move, name, parts) for name in names]
            try:
                for done in as_completed(futures):
                    done.result()
            except BaseException:
                files.shutdown(wait=False, cancel_futures=True)
                raise

    def _begin(self, sizes: Mapping[str, int]) -> None:
        self._state = TransferProgress(sum(sizes.values()), files=len(sizes))
        self._watch(self._state)

    def _moved(self, count: int, *, resumed: bool = False) -> None:
        with self._lock:
            self._state.done += count
            self._state.resumed += count if resumed else 0
            self._watch(self._state)

    def _same(self, size: int) -> None:
        with self._lock:
            self._state.unchanged += 1
        self._moved(size, resumed=True)

    def _download(self, store: Store, file: StoredFile, path: Path, pool: ThreadPoolExecutor) -> None:
        with one_line_errors(str(path), "written"):  # errors of the store are translated before they get here
            self._fetch(store, file, path, pool)

    def _fetch(self, store: Store, file: StoredFile, path: Path, pool: ThreadPoolExecutor) -> None:
        self._state.name = path.name
        if path.exists():
            if _same_content(store, file, path):
                self._same(file.size)
                return
            if not self._replace:
                raise DataError(f"{path} exists with other content; use --replace, or choose another name")
        path.parent.mkdir(parents=True, exist_ok=True)
        draft, part = path.with_name(f".{path.name}.clew-part"), part_size(file.size)
        with _open_exclusively(draft, file.location) as stream:
            identity = {
                "source": mask_secrets(file.location),
                "size": file.size,
                "token": file.token,
                "part": part,
            }
            state = TransferState(path.with_name(f".{path.name}.clew-part.json"), identity)
            if not state.parts or draft.stat().st_size != file.size:
                state.drop()
                _reserve(stream, file.size, draft)

            expected = pool.submit(_with_retries, lambda: store.checksums(file), file.location)
            checksums = DownloadChecksums(stream, file.size, part, expected)

            def fetch(number: int) -> int:
                start, stop = number * part, min((number + 1) * part, file.size)
                return os.pwrite(
                    stream.fileno(), _with_retries(lambda: _read(store, file, start, stop), file.location), start
                )

            self._parts(state, file.size, part, fetch, pool, checksums.follow)
            try:
                check_download(expected.result(), checksums.hex_digests(), file)
            except ChecksumMismatchError:
                state.drop()
                draft.unlink()
                raise
            draft.replace(path)
            state.drop()

    def _upload(
        self, store: Store, source: LocalFile, target: str, existing: StoredFile | None, pool: ThreadPoolExecutor
    ) -> None:
        self._state.name = source.path.name
        if existing is not None:
            if _same_content(store, existing, source.path, source):
                self._same(source.size)
                return
            if not self._replace:
                raise DataError(
                    f"{mask_secrets(target)} exists with other content; use --replace, or choose another name"
                )
        part = part_size(source.size)
        identity = {"target": mask_secrets(target), "sha256": source.sha256, "part": part}
        name = hashlib.sha256(f"{target} {source.sha256}".encode()).hexdigest()[:32]
        state = TransferState(cache_folder() / "transfers" / f"{name}.json", identity)
        resumed = sum(min(part, source.size - number * part) for number in state.parts)
        try:
            self._send(store, source, target, state, part, pool)
        except StoreUnavailableError:
            raise
        except DataError:
            state.drop()
            if not resumed:
                raise
            self._moved(-resumed, resumed=True)  # the store lost the parts of an earlier try
            self._send(store, source, target, state, part, pool)
        state.drop()

    def _send(
        self, store: Store, source: LocalFile, target: str, state: TransferState, part: int, pool: ThreadPoolExecutor
    ) -> None:
        writer = _with_retries(lambda: store.writer(target, source, state.memory, part), target, "written")
        state.save()

        def send(number: int) -> Any:
            with source.path.open("rb") as stream:
                stream.seek(number * part)
                data = stream.read(part)
            return _with_retries(lambda: writer.write(number, number * part, data), target, "written")

        try:
            self._parts(state, source.size, part, send, pool)
            with one_line_errors(target, "written"):
                writer.close(state.parts)
        except StoreUnavailableError:
            raise
        except DataError:
            with contextlib.suppress(Exception):  # the store may refuse this call too
                writer.drop()
            raise

    def _parts(
        self,
        state: TransferState,
        size: int,
        part: int,
        move: Callable[[int], Any],
        pool: ThreadPoolExecutor,
        after: Callable[[Container[int]], None] = lambda parts: None,
    ) -> None:
        """Transfer the missing parts. Completed parts stay recorded if another part fails."""
        sizes = {number: min(part, size - number * part) for number in range(max(1, -(-size // part)))}
        for number in state.parts:
            self._moved(sizes[number], resumed=True)
        futures = {pool.submit(move, number): number for number in sizes if number not in state.parts}
        try:
            for done in as_completed(futures):
                state.add(futures[done], done.result())
                self._moved(sizes[futures[done]])
                after(state.parts)
        except BaseException:
            for other in futures:
                other.cancel()
            raise
        finally:
            state.save()


def _check_inside(names: Iterable[str], source: str) -> None:
    """Check that no file would be written outside the target folder.

    Raises:
        DataError: A file name leads out of it.
    """
    for name in names:
        if name.startswith("/") or ".." in name.split("/"):
            raise DataError(f"{mask_secrets(source)}: has a file called '{name}', which leads out of the folder")


def _read(store: Store, file: StoredFile, start: int, stop: int) -> bytes:
    data = store.read(file, start, stop)
    if len(data) != stop - start:
        raise StoreUnavailableError(f"{mask_secrets(file.location)}: the server sent incomplete data; try again")
    return data


def part_size(size: int) -> int:
    """Size of a part in bytes: whole MiB, and large enough that no file has too many parts."""
    return max(PART, -(-size // _MAX_PARTS >> 20) + 1 << 20) if size > PART * _MAX_PARTS else PART


def _same_content(store: Store, file: StoredFile, path: Path, source: LocalFile | None = None) -> bool:
    """True if a local file equals a stored one: by checksum, or byte by byte if the store has no checksum."""
    if path.stat().st_size != file.size:
        return False
    expected = _with_retries(lambda: store.checksums(file), file.location)
    if expected:
        computed = {name: value for name in expected if (value := getattr(source, name, ""))} or file_checksums(
            path, needed_checksums(expected)
        )
        return all(expected[name] == value for name, value in computed.items())
    part = part_size(file.size)
    with path.open("rb") as stream:
        return all(
            stream.read(part)
            == _with_retries(partial(store.read, file, start, min(start + part, file.size)), file.location)
            for start in range(0, file.size, part)
        )


def _stages(files: Mapping[str, Any]) -> list[list[str]]:
    """The names in two groups: the files that mark a complete folder come last."""
    final = [name for name in files if name.rpartition("/")[2] in _COMPLETION_FILES]
    return [names for names in ([name for name in files if name not in final], final) if names]


def _with_retries(call: Callable[[], _T], location: str, action: str = "read") -> _T:
    """Call `call`. If the server does not answer, retry after increasing pauses."""
    for attempt in range(TRIES):
        try:
            with one_line_errors(location, action):
                return call()
        except StoreUnavailableError:
            if attempt == TRIES - 1:
                raise
            time.sleep(0.5 * 2**attempt)
    raise AssertionError("the last attempt returns or raises")


@contextlib.contextmanager
def _open_exclusively(path: Path, location: str) -> Iterator[IO[bytes]]:
    """Open the partial file with a lock, so that no other process downloads to it."""
    open_own_part(path).close()
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(hold_lock(path, timeout=0, required=False))
        except BlockingIOError:
            raise DataError(f"{mask_secrets(location)}: another process is downloading it to the same place") from None
        yield stack.enter_context(open_own_part(path))


def _reserve(stream: IO[bytes], size: int, path: Path) -> None:
    """Allocate the whole file first, so that a full disk is reported before anything is transferred."""
    stream.truncate(0)
    if size:
        try:
            os.posix_fallocate(stream.fileno(), 0, size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                path.unlink()
                raise
            if shutil.disk_usage(path.parent).free < size:
                path.unlink()
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from None
            stream.truncate(size)


def _not_found_message(location: str) -> str:
    return "no such DID" if scheme(location) == "rucio" else "nothing there"


def _make_folder(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
