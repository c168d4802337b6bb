"""Workers on this machine, forked from a server process that has torch loaded already."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import socket
import sys
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from typing import Any, cast

import psutil

from clew.errors import ClewError, UserError, WorkerError


def run_local(work: Callable[..., None], arguments: Sequence[Any], ranks: int, *, preload: Sequence[str]) -> None:
    """Run `work(*arguments, rank, ranks)` in `ranks` processes and wait for them all.

    When one fails the others are stopped, and its own message is raised: a user's mistake as what it was, anything
    else as a WorkerError. `preload` names modules the server imports once, so that a worker starts in milliseconds.
    """
    context: Any = multiprocessing.get_context("spawn" if sys.platform == "darwin" else "forkserver")
    if context.get_start_method() == "forkserver":
        context.set_forkserver_preload(list(preload))
    workers: dict[Any, tuple[int, BaseProcess]] = {}
    try:
        for rank in range(ranks):
            here, there = context.Pipe(duplex=False)
            process = context.Process(target=_enter, args=(there, work, tuple(arguments), rank, ranks), daemon=True)
            process.start()
            there.close()
            workers[here] = (rank, process)
        _watch(workers)
    finally:
        _stop([process for _, process in workers.values()])


def _watch(workers: dict[Any, tuple[int, BaseProcess]]) -> None:
    """Return when every worker has said that it is done; raise at the first that fails."""
    waiting = dict(workers)
    while waiting:
        for ready in multiprocessing.connection.wait(list(waiting)):
            rank, process = waiting.pop(ready)
            try:
                failure: Exception | None = cast(Any, ready).recv()
            except EOFError:
                process.join()
                failure = WorkerError(f"rank {rank} died without a word (exit code {process.exitcode})")
            if failure is not None:
                raise failure


def _stop(processes: Sequence[BaseProcess]) -> None:
    for process in processes:
        process.join(timeout=0.5)
        if process.is_alive():
            process.terminate()
    for process in processes:
        process.join(timeout=5)
        if process.is_alive():
            process.kill()
            process.join()


def _enter(report: Any, work: Callable[..., None], arguments: tuple[Any, ...], rank: int, ranks: int) -> None:
    """A worker's first function: find the loopback, do the work, say how it went."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", _loopback())
    try:
        work(*arguments, rank, ranks)
        report.send(None)
    except UserError as error:
        report.send(type(error)(str(error)))
    except ClewError as error:
        report.send(WorkerError(f"rank {rank}: {error}"))
    except KeyboardInterrupt:
        report.send(WorkerError(f"rank {rank} was interrupted"))
    except Exception as error:
        report.send(WorkerError(f"rank {rank}: {type(error).__name__}: {error}"))
        raise


def _loopback() -> str:
    """The name of the loopback interface: `lo` on Linux, `lo0` on macOS."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(a.family == socket.AF_INET and a.address == "127.0.0.1" for a in addresses):
            return name
    return "lo"
