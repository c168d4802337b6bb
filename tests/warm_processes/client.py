"""Replaces how this process starts Python: commands that can be forked are sent to its server."""

from __future__ import annotations

import contextlib
import errno
import json
import multiprocessing.util
import os
import select
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.warm_processes.request import ENVIRONMENT_BYTES, START_ENVIRONMENT, describe, refusal

ROOT = Path(__file__).parents[2]
_START = "import sys; sys.path.insert(0, sys.argv[1]); from tests.warm_processes.server import main; main()"
_real_execute: Any = subprocess.Popen._execute_child  # type: ignore[attr-defined]
_real_poll: Any = subprocess.Popen._internal_poll  # type: ignore[attr-defined]
_real_waitpid = os.waitpid
_real_spawn: Any = multiprocessing.util.spawnv_passfds


@dataclass
class Server:
    """The connection of one process to its server."""

    requests: socket.socket
    ends: socket.socket
    owner: int = field(default_factory=os.getpid)
    session: int = field(default_factory=lambda: os.getsid(0))
    statuses: dict[int, int] = field(default_factory=dict)
    running: set[int] = field(default_factory=set)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def usable(self) -> bool:
        """Whether processes of the server have the parent and the session that this one's would have."""
        return self.owner == os.getpid() and self.session == os.getsid(0)

    def fork(self, request: dict[str, Any], descriptors: Sequence[int]) -> int:
        """Have a process forked; its number. Raises OSError if the server is gone or has refused."""
        with self.lock:
            socket.send_fds(self.requests, [json.dumps(request).encode()], list(descriptors))
            answer = json.loads(self.requests.recv(1 << 16) or b"{}")
            if "pid" not in answer:
                raise OSError(answer.get("errno", errno.EPIPE), answer.get("message", "no server"), answer.get("file"))
            self.running.add(answer["pid"])
            return int(answer["pid"])

    def wait(self, pid: int, options: int) -> tuple[int, int]:
        """As os.waitpid."""
        while True:
            with self.lock:
                self._receive(0.0)
                if pid in self.statuses:
                    self.running.discard(pid)
                    return pid, self.statuses.pop(pid)
            if options & os.WNOHANG:
                return 0, 0
            select.select([self.ends], [], [], 0.1)

    def _receive(self, seconds: float) -> None:
        while select.select([self.ends], [], [], seconds)[0]:
            message = self.ends.recv(1 << 12)
            if not message:
                raise ChildProcessError(errno.ECHILD, "the server of processes is gone")
            pid, status = json.loads(message)
            self.statuses[pid] = status


_servers: list[Server] = []
"""At most one: that of this process."""
_paused: list[bool] = [True]
"""Empty while processes are forked."""
counts: Counter[str] = Counter()
"""Processes of this process by the reason why they were started as usual; "": they were forked."""


def install() -> None:
    """Be able to fork processes from now on (`forking`). The server is started with the first."""
    START_ENVIRONMENT.clear()
    START_ENVIRONMENT.update(os.environ)
    _replace()


def install_with(server: Server | None) -> None:
    """Use this server from now on; None: start processes as usual."""
    _servers[:] = [] if server is None else [server]
    _paused[:] = [True] if server is None else []
    _replace()


def _replace() -> None:
    subprocess.Popen._execute_child = _execute_child  # type: ignore[attr-defined]
    subprocess.Popen._internal_poll = _internal_poll  # type: ignore[attr-defined]
    multiprocessing.util.spawnv_passfds = _spawn
    os.waitpid = _waitpid


@contextlib.contextmanager
def forking(*, on: bool) -> Iterator[None]:
    """Fork processes within the block, or start them as usual."""
    before = list(_paused)
    _paused[:] = [] if on else [True]
    try:
        yield
    finally:
        _paused[:] = before


@contextlib.contextmanager
def pause() -> Iterator[None]:
    """Start processes as usual within the block."""
    _paused.append(True)
    try:
        yield
    finally:
        _paused.pop()


def _server() -> Server:
    if not _servers:
        parent_end, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        our_ends, their_ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        numbers = (child_end.fileno(), their_ends.fileno())
        padding = "x" * ENVIRONMENT_BYTES
        with pause():
            subprocess.Popen(
                [sys.executable, "-P", "-c", _START, str(ROOT), *map(str, numbers)],
                pass_fds=numbers,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**START_ENVIRONMENT, "OMP_WAIT_POLICY": "PASSIVE", "CLEW_PADDING": padding},
            )
        child_end.close()
        their_ends.close()
        _servers.append(Server(parent_end, our_ends))
    return _servers[0]


def _can_fork(arguments: Sequence[Any], environment: Any, folder: str | None = None) -> bool:
    if _paused:
        reason = "paused"
    elif _servers and not _servers[0].usable():
        reason = "another session"
    else:
        reason = refusal(arguments, os.environ if environment is None else environment, folder)
    counts[reason] += 1
    if log := os.environ.get("CLEW_TEST_FORKS"):
        with Path(log).open("a") as file:
            file.write(json.dumps([reason, os.environ.get("PYTEST_CURRENT_TEST"), *map(str, arguments)]) + "\n")
    return not reason


def _execute_child(self: Any, args: Any, executable: Any, preexec_fn: Any, *rest: Any) -> None:
    """As Popen's own method, whose arguments have this order."""
    close_fds, pass_fds, cwd, env, _, _, shell, p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite = rest[:13]
    _, gid, gids, uid, umask, new_session, process_group = rest[13:]
    special = (executable, preexec_fn, gid, gids, uid) != (None,) * 5 or shell or not close_fds or umask >= 0
    if special or isinstance(args, str | bytes | os.PathLike) or not _can_fork(list(args), env, cwd):
        _real_execute(self, args, executable, preexec_fn, *rest)
        return
    numbers = [0, 1, 2, *pass_fds]
    sent = [own if own >= 0 else number for own, number in zip((p2cread, c2pwrite, errwrite), range(3), strict=True)]
    request = describe(
        list(args),
        os.environ if env is None else env,
        folder=cwd,
        new_session=new_session,
        process_group=process_group,
        descriptors=numbers,
    )
    self.pid = _server().fork(request, [*sent, *pass_fds])
    self._child_created = True
    for child_end, parent_end in ((p2cread, p2cwrite), (c2pwrite, c2pread), (errwrite, errread)):
        if child_end != -1 and (parent_end != -1 or child_end == getattr(self, "_devnull", None)):
            with contextlib.suppress(OSError):
                os.close(child_end)
    self._devnull = None


def _spawn(path: Any, args: Sequence[Any], passfds: Sequence[int]) -> int:
    """As multiprocessing's own function: the server of a process pool."""
    if not _can_fork(args, None):
        return int(_real_spawn(path, args, passfds))
    request = describe(
        args, os.environ, folder=None, new_session=False, process_group=-1, descriptors=[0, 1, 2, *map(int, passfds)]
    )
    return _server().fork(request, [0, 1, 2, *map(int, passfds)])


def _waitpid(pid: int, options: int) -> tuple[int, int]:
    for server in _servers:
        if server.owner == os.getpid() and pid in server.running:
            return server.wait(pid, options)
    return _real_waitpid(pid, options)


def _internal_poll(self: Any, _deadstate: Any = None, *more: Any) -> Any:
    if self.returncode is None and any(self.pid in server.running for server in _servers):
        with contextlib.suppress(ChildProcessError), self._waitpid_lock:
            pid, status = _waitpid(self.pid, os.WNOHANG)
            if pid and self.returncode is None:
                self._handle_exitstatus(status)
        return self.returncode
    return _real_poll(self, _deadstate, *more)
