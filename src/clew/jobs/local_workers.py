"""Workers on this machine, forked from a server process that has torch loaded already."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import multiprocessing.forkserver
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any, cast

import psutil

from clew.errors import ClewError, LostWorkerError, StoppedError, UserError, WorkerError
from clew.jobs.worker_process import mark, without_main

_ECHO = 0.2
"""Seconds in which a failure is followed by those it causes."""


def run_local(work: Callable[..., None], arguments: Sequence[Any], ranks: int, *, preload: Sequence[str]) -> None:
    """Run `work(*arguments, rank, ranks)` in `ranks` processes and wait for them all.

    When one fails the others are stopped, and its own message is raised: a user's mistake as what it was, anything
    else as a WorkerError. `preload` names modules the server imports once, so that a worker starts in milliseconds.
    """
    context: Any = multiprocessing.get_context("spawn" if sys.platform == "darwin" else "forkserver")
    if context.get_start_method() == "forkserver":
        server: Any = multiprocessing.forkserver._forkserver
        if server._preload_modules != list(preload):
            # a server that runs already (prepare had one) would ignore what to preload: a fresh one is started
            server._stop()
            context.set_forkserver_preload(list(preload))
    workers: dict[Any, tuple[int, BaseProcess]] = {}
    try:
        for rank in range(ranks):
            here, there = context.Pipe(duplex=False)
            process = context.Process(target=_enter, args=(there, work, tuple(arguments), rank, ranks), daemon=True)
            with without_main():
                process.start()
            there.close()
            workers[here] = (rank, process)
        with _passing_on([process for _, process in workers.values()]):
            _watch(workers)
    finally:
        _stop([process for _, process in workers.values()])


@contextlib.contextmanager
def _passing_on(processes: Sequence[BaseProcess]) -> Iterator[None]:
    """Whoever asks this process to stop, asks the workers: they know how to do it well."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def tell(number: int, frame: FrameType | None) -> None:
        for process in processes:
            if process.pid is not None and process.is_alive():
                os.kill(process.pid, number)

    before = {number: signal.signal(number, tell) for number in (signal.SIGTERM, signal.SIGUSR1)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _watch(workers: dict[Any, tuple[int, BaseProcess]]) -> None:
    """Return when every worker has said that it is done; raise the first failure.

    Others fail because the first did, and may be heard before it: who else fails at once is waited for, and the
    earliest is raised. A worker that died without a word comes before all that could still speak.
    """
    waiting, failures = dict(workers), list[tuple[float, Exception]]()
    while waiting:
        ready = multiprocessing.connection.wait(list(waiting), _ECHO if failures else None)
        if not ready:
            break
        for one in ready:
            rank, process = waiting.pop(one)
            try:
                when, failure = cast(Any, one).recv()
            except EOFError:
                process.join()
                told = f"rank {rank} died without a word (exit code {process.exitcode})"
                when, failure = 0.0, LostWorkerError(told)
            if failure is not None:
                failures.append((when, failure))
    if failures:
        raise min(failures, key=lambda pair: pair[0])[1]


def _stop(processes: Sequence[BaseProcess]) -> None:
    """Let them end, then ask them to, then make them."""
    for process in _left_after(0.5, processes):
        process.terminate()
    for process in _left_after(5, processes):
        process.kill()
        process.join()


def _left_after(seconds: float, processes: Sequence[BaseProcess]) -> list[BaseProcess]:
    end = time.monotonic() + seconds
    for process in processes:
        process.join(timeout=max(end - time.monotonic(), 0))
    return [process for process in processes if process.is_alive()]


def _enter(report: Any, work: Callable[..., None], arguments: tuple[Any, ...], rank: int, ranks: int) -> None:
    """A worker's first function: find the loopback, do the work, say how it went."""
    mark()
    threading.Thread(target=_leave_with, args=(report,), name="parent", daemon=True).start()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", _loopback())

    def tell(failure: Exception | None) -> None:
        report.send((time.monotonic(), failure))

    try:
        work(*arguments, rank, ranks)
        tell(None)
    except (UserError, StoppedError) as error:
        tell(type(error)(str(error)))
    except ClewError as error:
        tell(WorkerError(f"rank {rank}: {error}"))
    except KeyboardInterrupt:
        tell(WorkerError(f"rank {rank} was interrupted"))
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        tell(WorkerError(f"rank {rank}: {type(error).__name__}: {error} ({where.filename}:{where.lineno})"))
        if "--debug" in sys.argv:
            raise


def _leave_with(report: Any) -> None:
    """End when nobody is left to report to: workers of a killed parent would wait for each other for ever."""
    watch = select.poll()
    watch.register(report.fileno(), 0)  # an error is told without being asked for
    watch.poll()
    os._exit(1)


def _loopback() -> str:
    """The name of the loopback interface: `lo` on Linux, `lo0` on macOS."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(a.family == socket.AF_INET and a.address == "127.0.0.1" for a in addresses):
            return name
    return "lo"
