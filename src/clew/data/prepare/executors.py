"""Executors: any `concurrent.futures.Executor` can do the work. A queue on top of it continues after a worker was
lost."""

from __future__ import annotations

import contextlib
import functools
import importlib
import multiprocessing
import multiprocessing.forkserver
import os
import pickle
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from clew.data.prepare.stage_cache import BusyError
from clew.errors import ClewError, ConfigError, WorkerError, nearest
from clew.jobs.worker_process import follow_parent, without_main
from clew.runs.environment import allowed_cores

T = TypeVar("T")
R = TypeVar("R")
Factory = Callable[[], "contextlib.AbstractContextManager[OpenExecutor]"]

TRIES = 3
"""How often a task, running alone, may end its worker before the preparation fails."""
_WORLD = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_SIZE", "MV2_COMM_WORLD_SIZE")


_MODULES = ("clew.data.prepare.worker", "clew.data.prepare.shard_files", "clew.data.table.hdf5", "pyarrow.csv")
"""What workers import before their first task."""


@dataclass(frozen=True)
class OpenExecutor:
    """An executor that is ready for tasks."""

    executor: Executor | None
    """None on a rank that only executed the tasks of another one."""
    is_one_host: bool
    """Whether all workers run on one host, so that they can write to one file at the same time."""
    exit_code: int = 0
    """Where `executor` is None: the exit code of rank 0."""


class InlineExecutor(Executor):
    """Runs the work immediately in this thread."""

    def submit(self, work: Callable[..., R], /, *arguments: Any, **options: Any) -> Future[R]:
        future: Future[R] = Future()
        try:
            future.set_result(work(*arguments, **options))
        except Exception as error:
            future.set_exception(error)
        return future


def _process_context(modules: Sequence[str]) -> Any:
    """Return the way to start processes. A forkserver forks from a clean process that has loaded what is needed; macOS
    has no safe fork."""
    context = multiprocessing.get_context("spawn" if sys.platform == "darwin" else "forkserver")
    if context.get_start_method() == "forkserver":
        context.set_forkserver_preload([*_MODULES, *modules])
    return context


@contextlib.contextmanager
def _processes(workers: int, _: str, modules: Sequence[str]) -> Iterator[OpenExecutor]:
    context = _process_context(modules)
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=follow_parent, initargs=(os.getpid(),))
    try:
        yield OpenExecutor(pool, is_one_host=True)
    except BaseException:
        _kill(pool)
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _kill(pool: ProcessPoolExecutor) -> None:
    """Kill the workers of a pool that is broken or not needed any more: a worker that is just starting would otherwise
    wait for work without end."""
    for process in list((pool._processes or {}).values()):
        process.kill()


@contextlib.contextmanager
def _threads(workers: int, _: str, __: Sequence[str]) -> Iterator[OpenExecutor]:
    pool = ThreadPoolExecutor(workers)
    try:
        yield OpenExecutor(pool, is_one_host=True)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextlib.contextmanager
def _mpi(_: int, __: str, ___: Sequence[str]) -> Iterator[OpenExecutor]:
    """Return the executor on rank 0. The other ranks execute its tasks, and return None when it has finished."""
    try:
        import mpi4py

        mpi4py.rc.recv_mprobe = False  # Open MPI 4 under srun fails in matched probes
        from mpi4py import MPI
        from mpi4py.futures import MPICommExecutor
    except ImportError as error:
        raise ConfigError(f"executor mpi needs mpi4py and an MPI library: pip install 'clew[mpi]' ({error})") from error
    world = MPI.COMM_WORLD
    if world.size == 1:
        yield OpenExecutor(InlineExecutor(), is_one_host=True)
        return
    if world.rank:
        for module in _MODULES:  # while rank 0 plans
            importlib.import_module(module)
    is_one_host = world.Split_type(MPI.COMM_TYPE_SHARED).size == world.size
    if world.rank:
        with MPICommExecutor(world, root=0):  # until rank 0 has finished
            pass
        yield OpenExecutor(None, is_one_host, exit_code=world.bcast(1, root=0))
        return
    code = 1
    try:
        with MPICommExecutor(world, root=0) as pool:
            yield OpenExecutor(cast(Executor, pool), is_one_host)
        code = 0
    except ClewError as error:
        code = error.exit_code
        raise
    finally:
        world.bcast(code, root=0)


@contextlib.contextmanager
def _dask(workers: int, address: str, _: Sequence[str]) -> Iterator[OpenExecutor]:
    try:
        import distributed
    except ImportError as error:
        raise ConfigError(f"executor dask needs distributed: pip install 'clew[dask]' ({error})") from error
    dask: Any = distributed
    with contextlib.ExitStack() as stack:
        if address:
            try:
                client = stack.enter_context(dask.Client(address, timeout=10))
            except (OSError, TimeoutError) as error:
                raise ConfigError(f"no dask scheduler answers at {address}: {error}") from error
        else:
            cluster = dask.LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None)
            client = stack.enter_context(dask.Client(stack.enter_context(cluster)))
        hosts = {worker["host"] for worker in client.scheduler_info(n_workers=-1)["workers"].values()}
        yield OpenExecutor(client.get_executor(pure=False, retries=0), is_one_host=len(hosts) == 1)


EXECUTORS = {"processes": _processes, "threads": _threads, "mpi": _mpi, "dask": _dask}


def mpi_rank() -> int:
    """Return the rank of this process in an MPI job; 0 outside of one."""
    names = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "MV2_COMM_WORLD_RANK")
    return max(int(os.environ.get(name, "0")) for name in names)


def is_mpi(name: str) -> bool:
    """Return whether the executor with this name is that of MPI, whose ranks all run the same command."""
    return name == "mpi" or (name == "auto" and any(int(os.environ.get(variable, "1")) > 1 for variable in _WORLD))


def start_early(name: str, workers: int | None, modules: Sequence[str] = ()) -> None:
    """Start the process from which workers are forked, if there will be any. It imports while this process plans.

    Args:
        name: The name of the executor.
        workers: Number of processes. None uses all cores.
        modules: Modules that workers need in addition.
    """
    if name not in ("auto", "processes") or is_mpi(name) or (workers or allowed_cores()) == 1:
        return
    if _process_context(modules).get_start_method() == "forkserver":
        with without_main():
            multiprocessing.forkserver.ensure_running()


def executor_factory(name: str, workers: int | None, modules: Sequence[str] = ()) -> tuple[Factory, int]:
    """Return a function that opens an executor, and the number of tasks that keep it busy.

    Args:
        name: `auto`, `processes`, `threads`, `mpi`, `dask` or `dask://HOST:PORT`.
        workers: Number of processes or threads. None uses all cores.
        modules: Modules that worker processes import before they are forked. One that cannot be imported is left out.

    Raises:
        ConfigError: there is no executor with this name.
    """
    kind, _, address = name.partition("://")
    if kind == "auto":
        kind = "mpi" if is_mpi(kind) else "processes"
    if kind not in EXECUTORS:
        raise ConfigError(f"no executor '{name}'{nearest(kind, EXECUTORS)}")
    width = workers or allowed_cores()
    if kind == "processes" and width == 1:
        return lambda: contextlib.nullcontext(OpenExecutor(InlineExecutor(), is_one_host=True)), 1
    if kind == "mpi":
        width = max(*(int(os.environ.get(variable, "1")) for variable in _WORLD), 2)
    url = f"tcp://{address}" if address and "://" not in address else address
    return lambda: EXECUTORS[kind](width, url, modules), width


@dataclass
class _Task:
    place: int
    item: Any
    tries: int = 0


class TaskQueue:
    """Runs a function for many items on an executor. A limited number is in flight, none is lost, and the results are
    in
    order.

    A piece that another process works on is tried again later. If the executor breaks because a worker was killed, it
    is opened again, and the tasks that were in flight are repeated one at a time, to identify a task that ends its
    worker.

    Args:
        open_executor: Opens the executor, as a context manager.
        width: Number of tasks that keep the executor busy.
    """

    def __init__(self, open_executor: Factory, width: int) -> None:
        self.open_executor, self.width = open_executor, width
        self._pool: Executor | None = None
        self.is_one_host, self.exit_code = False, 0
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> TaskQueue:
        opened = self._stack.enter_context(self.open_executor())
        self._pool, self.is_one_host, self.exit_code = opened.executor, opened.is_one_host, opened.exit_code
        return self

    def __exit__(self, *error: Any) -> None:
        # with the error: after an interrupt, workers are killed and not waited for
        self._stack.__exit__(*(error or (None, None, None)))

    @property
    def serves(self) -> bool:
        """Whether this process was only a worker, and the work has finished."""
        return self._pool is None

    def run(
        self,
        work: Callable[..., R],
        shared: Sequence[Any],
        items: Sequence[T],
        *,
        label: Callable[[T], str],
        on_result: Callable[[T, R], None] = lambda item, result: None,
    ) -> list[R]:
        """Call `work(*shared, item)` for all items.

        Args:
            work: The function. It must be possible to pickle it.
            shared: First arguments of all calls.
            items: Last argument of each call.
            label: Returns a name of an item, for messages.
            on_result: Called with each item and its result, as soon as it is available.

        Returns:
            The results in the order of the items.

        Raises:
            WorkerError: an item ended its worker several times.
            Exception: any exception of `work`.
        """
        waiting = deque(_Task(place, item) for place, item in enumerate(items))
        results: dict[int, R] = {}
        while waiting:
            running: dict[Future[R], _Task] = {}
            try:
                self._drain(self._task(work, shared), waiting, running, results, on_result)
            except Exception as error:
                if not _lost_worker(error):
                    raise
                self._requeue_lost(list(running.values()), waiting, label, error)
                if isinstance(self._pool, ProcessPoolExecutor):
                    _kill(self._pool)
                self.__exit__()
                self.__enter__()
            finally:
                for future in running:
                    future.cancel()
        return [results[place] for place in range(len(items))]

    def _task(self, work: Callable[..., R], shared: Sequence[Any]) -> Callable[[Any], R]:
        """Return `work` with its shared arguments. Another process unpickles them once, inside the task, so that errors
        are reported."""
        if isinstance(self._pool, (InlineExecutor, ThreadPoolExecutor)):
            return functools.partial(work, *shared)
        return functools.partial(_unpack_and_work, work, pickle.dumps(tuple(shared)))

    def _drain(
        self,
        work: Callable[[Any], R],
        waiting: deque[_Task],
        running: dict[Future[R], _Task],
        results: dict[int, R],
        on_result: Callable[[Any, R], None],
    ) -> None:
        """Run tasks until none is waiting. After a worker was lost, run one task at a time until the repeated tasks
        have
        finished."""
        assert self._pool is not None
        while waiting or running:
            alone = any(task.tries for task in (*waiting, *running.values()))
            while waiting and len(running) < (1 if alone else 2 * self.width):
                with without_main():
                    future = self._pool.submit(work, waiting[0].item)
                running[future] = waiting[0]  # a broken pool raises: it still waits
                waiting.popleft()
            ready, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in ready:
                task = running[future]
                try:
                    results[task.place] = future.result()
                except BusyError:
                    waiting.append(task)
                    time.sleep(0.05)
                else:
                    on_result(task.item, results[task.place])
                del running[future]

    def _requeue_lost(
        self, lost: list[_Task], waiting: deque[_Task], label: Callable[[Any], str], error: Exception
    ) -> None:
        """Repeat the tasks of a lost worker. A task that ran alone is counted as its cause; several are marked for
        running
        alone."""
        for task in sorted(lost, key=lambda lost_task: lost_task.place, reverse=True):
            task.tries = task.tries + 1 if len(lost) == 1 else max(task.tries, 1)
            if task.tries > TRIES:
                raise WorkerError(f"a worker died {TRIES} times at {label(task.item)}") from error
            waiting.appendleft(task)


def _unpack_and_work(work: Callable[..., R], shared: bytes, item: Any) -> R:
    return work(*_unpacked(shared), item)


@functools.lru_cache(maxsize=4)
def _unpacked(shared: bytes) -> tuple[Any, ...]:
    return tuple(pickle.loads(shared))


def _lost_worker(error: Exception) -> bool:
    return isinstance(error, BrokenExecutor) or type(error).__name__ == "KilledWorker"
