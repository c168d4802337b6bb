"""The ranks of one command on this machine, forked from a server process that has torch loaded already."""

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

from clew.errors import ClewError, InterruptError, LostWorkerError, StoppedError, UserError, WorkerError
from clew.jobs.worker_process import (
    FORWARDED_INTERRUPT,
    announce_interrupt,
    ignore_terminal,
    mark_as_worker,
    without_main,
)

_ECHO = 0.2
"""Seconds within which a failure causes others."""


def run_local(
    work: Callable[..., None],
    arguments: Sequence[Any],
    ranks: int,
    *,
    preload: Sequence[str],
    saves_on_interrupt: bool = False,
) -> None:
    """Run `work(*arguments, rank, ranks)` in `ranks` processes and wait for them all.

    When one fails the others are stopped, and its own error is raised: a user's mistake as it was, anything else as a
    WorkerError. `preload` names modules that the server imports once, so that a worker starts in milliseconds. With
    `saves_on_interrupt` the first Ctrl-C asks the workers to stop with a checkpoint; otherwise, and the second time, it
    ends them at once.
    """
    context: Any = multiprocessing.get_context("spawn" if sys.platform == "darwin" else "forkserver")
    if context.get_start_method() == "forkserver":
        server: Any = multiprocessing.forkserver._forkserver
        if server._preload_modules != list(preload):
            # a server that runs already (prepare had one) would ignore the list: start a new one
            server._stop()
            context.set_forkserver_preload(list(preload))
    workers: dict[Any, tuple[int, BaseProcess]] = {}
    try:
        for rank in range(ranks):
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=_enter, args=(sender, work, tuple(arguments), rank, ranks), daemon=True)
            with without_main():
                process.start()
            sender.close()
            workers[receiver] = (rank, process)
        with _forwarded_signals([process for _, process in workers.values()], interrupts=saves_on_interrupt) as sent:
            try:
                _watch(workers)
            except Exception as error:
                if FORWARDED_INTERRUPT not in sent:
                    raise
                raise _interruption(error) from error
    except KeyboardInterrupt:
        for _, process in workers.values():
            process.kill()
        raise
    finally:
        _stop([process for _, process in workers.values()])


@contextlib.contextmanager
def _forwarded_signals(processes: Sequence[BaseProcess], *, interrupts: bool) -> Iterator[set[int]]:
    """Forward requests to stop from this process to the workers, which can write a checkpoint.

    Args:
        processes: The workers.
        interrupts: Whether the first Ctrl-C is a request to stop. The second one always raises KeyboardInterrupt.

    Yields:
        The signals that were forwarded.
    """
    sent: set[int] = set()
    if threading.current_thread() is not threading.main_thread():
        yield sent
        return

    def forward(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            if FORWARDED_INTERRUPT in sent:
                raise KeyboardInterrupt
            announce_interrupt()
            number = FORWARDED_INTERRUPT
        sent.add(number)
        for process in processes:
            if process.pid is not None and process.is_alive():
                os.kill(process.pid, number)

    numbers = [signal.SIGTERM, signal.SIGUSR1]
    if interrupts and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        numbers.append(signal.SIGINT)
    before = {number: signal.signal(number, forward) for number in numbers}
    try:
        yield sent
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interruption(error: Exception) -> BaseException:
    """Return what to raise for a failure after Ctrl-C: the stop with a checkpoint, or an interrupt if there was nothing
    to save."""
    if isinstance(error, InterruptError):
        return error
    return InterruptError(str(error)) if isinstance(error, StoppedError) else KeyboardInterrupt()


def _watch(workers: dict[Any, tuple[int, BaseProcess]]) -> None:
    """Return when every worker has reported success; raise the first failure.

    A failure makes others fail, whose reports may arrive first. So further failures are collected for a moment, and the
    earliest is raised. A worker that died without a report comes before all that could still report.
    """
    waiting, failures = dict(workers), list[tuple[float, Exception]]()
    while waiting:
        ready = multiprocessing.connection.wait(list(waiting), _ECHO if failures else None)
        if not ready:
            break
        for pipe in ready:
            rank, process = waiting.pop(pipe)
            try:
                when, failure = cast(Any, pipe).recv()
            except EOFError:
                process.join()
                message = f"rank {rank} died without a message (exit code {process.exitcode})"
                when, failure = 0.0, LostWorkerError(message)
            if failure is not None:
                failures.append((when, failure))
    if failures:
        raise min(failures, key=lambda pair: pair[0])[1]


def _stop(processes: Sequence[BaseProcess]) -> None:
    """Wait for their end, then ask them to end, then kill them."""
    for process in _running_after(0.5, processes):
        process.terminate()
    for process in _running_after(5, processes):
        process.kill()
        process.join()


def _running_after(seconds: float, processes: Sequence[BaseProcess]) -> list[BaseProcess]:
    end = time.monotonic() + seconds
    for process in processes:
        process.join(timeout=max(end - time.monotonic(), 0))
    return [process for process in processes if process.is_alive()]


def _enter(report: Any, work: Callable[..., None], arguments: tuple[Any, ...], rank: int, ranks: int) -> None:
    """A worker's first function: set the network interface, do the work, report the result."""
    mark_as_worker()
    ignore_terminal()
    signal.signal(FORWARDED_INTERRUPT, signal.default_int_handler)
    threading.Thread(target=_exit_with_parent, args=(report,), name="parent", daemon=True).start()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", _loopback())

    def send(failure: Exception | None) -> None:
        report.send((time.monotonic(), failure))

    try:
        work(*arguments, rank, ranks)
        send(None)
    except (UserError, StoppedError) as error:
        copy = type(error)(str(error))  # without its traceback and its cause, which may not be picklable
        copy.__dict__.update(error.__dict__)
        send(copy)
    except ClewError as error:
        send(WorkerError(f"rank {rank}: {error}"))
    except KeyboardInterrupt:
        send(WorkerError(f"rank {rank} was interrupted"))
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        send(WorkerError(f"rank {rank}: {type(error).__name__}: {error} ({where.filename}:{where.lineno})"))
        if "--debug" in sys.argv:
            raise


def _exit_with_parent(report: Any) -> None:
    """Exit when the parent is gone: workers of a killed parent would wait for each other for ever."""
    watch = select.poll()
    watch.register(report.fileno(), 0)  # errors are always reported
    watch.poll()
    os._exit(1)


def _loopback() -> str:
    """The name of the loopback interface: `lo` on Linux, `lo0` on macOS."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(a.family == socket.AF_INET and a.address == "127.0.0.1" for a in addresses):
            return name
    return "lo"
