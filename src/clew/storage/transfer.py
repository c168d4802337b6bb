"""Copying to and from stores: in parts, several at once, checked, and gone on with where it was cut.

What came down is in `.NAME.clew-part` beside its place, with a note of the parts that are there; what went up is noted
in the cache folder. Either note is good for the same bytes only: a source that changed begins anew.
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
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeVar

from clew.core.file_lock import hold_lock
from clew.errors import DataError
from clew.storage import store as stores
from clew.storage.checksums import DownloadChecksums, check_download, file_checksums, local_file, needed_checksums
from clew.storage.locations import base_name, is_url, local_path, mask_secrets, scheme
from clew.storage.store import LocalFile, Store, StoredFile
from clew.storage.store_errors import ChecksumMismatchError, StoreUnavailableError, one_line_errors
from clew.storage.transfer_state import TransferState, cache_folder

PART = 8 << 20
WORKERS = 8
_HASHERS = 4
_TRIES = 4
_MOST_PARTS = 9_000
"""S3 takes 10,000."""
_LAST = ("manifest.json", "clew.json")
"""Files whose presence says that all others are there."""
_T = TypeVar("_T")


@dataclass
class TransferProgress:
    """How far a transfer is, in bytes."""

    total: int = 0
    done: int = 0
    resumed: int = 0
    """Of these, what an earlier try had done."""
    files: int = 0
    same: int = 0
    """Files that were there already, with the same content."""
    name: str = ""
    begun: float = field(default_factory=time.monotonic)

    @property
    def seconds_left(self) -> float | None:
        """By the speed so far."""
        moved = self.done - self.resumed
        return (time.monotonic() - self.begun) * (self.total - self.done) / moved if moved > 0 else None


ProgressCallback = Callable[[TransferProgress], None]


def copy(
    source: str | Path,
    target: str | Path,
    *,
    watch: ProgressCallback | None = None,
    replace: bool = False,
    workers: int = WORKERS,
) -> TransferProgress:
    """Copy a file or a folder between any two places; what is there already with the same content is left alone.

    Called again after it was cut, it goes on where it was. Every file is compared by checksum before it gets its name.

    Raises:
        DataError: one line: nothing there, no permission, wrong credentials, no room, checksum mismatch, a target
            that holds something else while `replace` is false.
        GoneError: a server does not answer.
    """
    start, end = str(source), str(target)
    if is_url(start) and is_url(end):
        with tempfile.TemporaryDirectory(dir=_made(cache_folder() / "transfers")) as between:
            passing = str(Path(between) / base_name(start))
            copy(start, passing, workers=workers)
            return copy(passing, end, watch=watch, replace=replace, workers=workers)
    work = _Work(watch or (lambda _: None), workers, replace)
    return work.put(local_path(start), end) if is_url(end) else work.get(start, local_path(end))


class _Work:
    """One transfer: what both directions share."""

    def __init__(self, watch: ProgressCallback, workers: int, replace: bool) -> None:
        self._watch, self._replace, self._workers = watch, replace, workers
        self._lock, self._state = threading.Lock(), TransferProgress()

    def get(self, source: str, target: Path) -> TransferProgress:
        with one_line_errors(source):
            store = stores.find_store(source)
            found = _persist(lambda: store.files(source), source)
        if not found:
            raise DataError(f"{mask_secrets(source)}: {_nothing(source)}")
        if target.is_dir() and "" in found:
            target = target / base_name(source)
        _check_inside(found, source)
        self._begin({name: held.size for name, held in found.items()})
        for stage in _stages(found):
            self._each(
                stage,
                lambda name, pool: self._download(store, found[name], target / name if name else target, pool),
            )
        return self._state

    def put(self, source: Path, target: str) -> TransferProgress:
        with one_line_errors(str(source)):
            held = stores.find_store("").files(str(source))
            with ThreadPoolExecutor(_HASHERS) as pool:
                wanted = stores.find_store(target).wants
                made = pool.map(lambda each: local_file(Path(each.location), wanted), held.values())
                files = dict(zip(held, made, strict=True))
        if not files:
            raise DataError(f"{source}: no such file, or an empty folder")
        if "" in files and target.endswith("/"):
            target += source.name
        with one_line_errors(target, "written"):
            store = stores.find_store(target)
            targets = store.targets(target, files)
            there = _persist(lambda: store.files(target), target, "written")
        self._begin({name: each.size for name, each in files.items()})
        for stage in _stages(files):
            with one_line_errors(target, "written"):
                self._each(
                    stage, lambda name, pool: self._upload(store, files[name], targets[name], there.get(name), pool)
                )
        with one_line_errors(target, "written"):
            _persist(lambda: store.publish(target, targets, files), target, "written")
        return self._state

    def _each(self, names: Sequence[str], move: Callable[[str, ThreadPoolExecutor], None]) -> None:
        """Several files at once, whose parts share the same few threads."""
        with ThreadPoolExecutor(self._workers) as parts, ThreadPoolExecutor(self._workers) as files:
            begun = [files.submit(move, name, parts) for name in names]
            try:
                for done in as_completed(begun):
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
            self._state.same += 1
        self._moved(size, resumed=True)

    def _download(self, store: Store, held: StoredFile, path: Path, pool: ThreadPoolExecutor) -> None:
        with one_line_errors(str(path), "written"):  # what goes wrong with the store has been told before it comes here
            self._fetch(store, held, path, pool)

    def _fetch(self, store: Store, held: StoredFile, path: Path, pool: ThreadPoolExecutor) -> None:
        self._state.name = path.name
        if path.exists():
            if _same_content(store, held, path):
                self._same(held.size)
                return
            if not self._replace:
                raise DataError(f"{path} holds something else; use --replace, or another name")
        path.parent.mkdir(parents=True, exist_ok=True)
        draft, part = path.with_name(f".{path.name}.clew-part"), part_size(held.size)
        with _alone(draft, held.location) as stream:
            about = {
                "source": mask_secrets(held.location),
                "size": held.size,
                "token": held.token,
                "part": part,
            }
            note = TransferState(path.with_name(f".{path.name}.clew-part.json"), about)
            if not note.parts or draft.stat().st_size != held.size:
                note.drop()
                _reserve(stream, held.size, draft)

            known = pool.submit(_persist, lambda: store.checks(held), held.location)
            arriving = DownloadChecksums(stream, held.size, part, known)

            def fetch(number: int) -> int:
                start, stop = number * part, min((number + 1) * part, held.size)
                return os.pwrite(
                    stream.fileno(), _persist(lambda: _read(store, held, start, stop), held.location), start
                )

            self._parts(note, held.size, part, fetch, pool, arriving.follow)
            try:
                check_download(known.result(), arriving.found(), held)
            except ChecksumMismatchError:
                note.drop()
                draft.unlink()
                raise
            draft.replace(path)
            note.drop()

    def _upload(
        self, store: Store, source: LocalFile, target: str, there: StoredFile | None, pool: ThreadPoolExecutor
    ) -> None:
        self._state.name = source.path.name
        if there is not None:
            if _same_content(store, there, source.path, source):
                self._same(source.size)
                return
            if not self._replace:
                raise DataError(f"{mask_secrets(target)} holds something else; use --replace, or another name")
        part = part_size(source.size)
        about = {"target": mask_secrets(target), "sha256": source.sha256, "part": part}
        name = hashlib.sha256(f"{target} {source.sha256}".encode()).hexdigest()[:32]
        note = TransferState(cache_folder() / "transfers" / f"{name}.json", about)
        resumed = sum(min(part, source.size - number * part) for number in note.parts)
        try:
            self._send(store, source, target, note, part, pool)
        except StoreUnavailableError:
            raise
        except DataError:
            note.drop()
            if not resumed:
                raise
            self._moved(-resumed, resumed=True)  # the store has lost or forgotten what an earlier try sent
            self._send(store, source, target, note, part, pool)
        note.drop()

    def _send(
        self, store: Store, source: LocalFile, target: str, note: TransferState, part: int, pool: ThreadPoolExecutor
    ) -> None:
        writer = _persist(lambda: store.writer(target, source, note.memory, part), target, "written")
        note.save()

        def send(number: int) -> Any:
            with source.path.open("rb") as stream:
                stream.seek(number * part)
                data = stream.read(part)
            return _persist(lambda: writer.write(number, number * part, data), target, "written")

        try:
            self._parts(note, source.size, part, send, pool)
            with one_line_errors(target, "written"):
                writer.close(note.parts)
        except StoreUnavailableError:
            raise
        except DataError:
            with contextlib.suppress(Exception):  # the store may be as full, or as closed, to this
                writer.drop()
            raise

    def _parts(
        self,
        note: TransferState,
        size: int,
        part: int,
        move: Callable[[int], Any],
        pool: ThreadPoolExecutor,
        after: Callable[[Container[int]], None] = lambda parts: None,
    ) -> None:
        """Move the parts that are not there yet; what others have moved stays noted whatever happens to one."""
        sizes = {number: min(part, size - number * part) for number in range(max(1, -(-size // part)))}
        for number in note.parts:
            self._moved(sizes[number], resumed=True)
        begun = {pool.submit(move, number): number for number in sizes if number not in note.parts}
        try:
            for done in as_completed(begun):
                note.add(begun[done], done.result())
                self._moved(sizes[begun[done]])
                after(note.parts)
        except BaseException:
            for other in begun:
                other.cancel()
            raise
        finally:
            note.save()


def _check_inside(names: Iterable[str], source: str) -> None:
    """That no file would land outside the folder it is copied to.

    Raises:
        DataError: a name leads there.
    """
    for name in names:
        if name.startswith("/") or ".." in name.split("/"):
            raise DataError(f"{mask_secrets(source)}: has a file called '{name}', which leads out of the folder")


def _read(store: Store, held: StoredFile, start: int, stop: int) -> bytes:
    data = store.read(held, start, stop)
    if len(data) != stop - start:
        raise StoreUnavailableError(f"{mask_secrets(held.location)}: the server sent only a part; try again")
    return data


def part_size(size: int) -> int:
    """Bytes in a part: a whole number of MiB, so that no file has too many."""
    return max(PART, -(-size // _MOST_PARTS >> 20) + 1 << 20) if size > PART * _MOST_PARTS else PART


def _same_content(store: Store, held: StoredFile, path: Path, mine: LocalFile | None = None) -> bool:
    """Whether a file here is that of a store: by checksum, or byte for byte where the store has none."""
    if path.stat().st_size != held.size:
        return False
    known = _persist(lambda: store.checks(held), held.location)
    if known:
        ours = {name: value for name in known if (value := getattr(mine, name, ""))} or file_checksums(
            path, needed_checksums(known)
        )
        return all(known[name] == value for name, value in ours.items())
    part = part_size(held.size)
    with path.open("rb") as stream:
        return all(
            stream.read(part) == _persist(partial(store.read, held, start, min(start + part, held.size)), held.location)
            for start in range(0, held.size, part)
        )


def _stages(files: Mapping[str, Any]) -> list[list[str]]:
    """All names but those that say the others are there; then these."""
    final = [name for name in files if name.rpartition("/")[2] in _LAST]
    return [names for names in ([name for name in files if name not in final], final) if names]


def _persist(act: Callable[[], _T], location: str, what: str = "read") -> _T:
    """Do it, again if the server does not answer, with longer and longer pauses."""
    for attempt in range(_TRIES):
        try:
            with one_line_errors(location, what):
                return act()
        except StoreUnavailableError:
            if attempt == _TRIES - 1:
                raise
            time.sleep(0.5 * 2**attempt)
    raise AssertionError("the last try returns or raises")


@contextlib.contextmanager
def _alone(path: Path, location: str) -> Iterator[IO[bytes]]:
    """The file of parts, held against others who get the same."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(hold_lock(path, timeout=0, required=False))
        except BlockingIOError:
            raise DataError(f"{mask_secrets(location)}: another process is getting it to the same place") from None
        yield stack.enter_context(path.open("r+b"))


def _reserve(stream: IO[bytes], size: int, path: Path) -> None:
    """Room for all of it, so that a full disk is told before anything moves, and nothing is left on it."""
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


def _nothing(location: str) -> str:
    return "no such DID" if scheme(location) == "rucio" else "nothing there"


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
