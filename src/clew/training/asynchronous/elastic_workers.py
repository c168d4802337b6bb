"""Workers that join and leave during a training: the master that listens, and `clew worker`."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from clew.core.config import to_data
from clew.core.files import write_text
from clew.core.process import safe_path
from clew.errors import ConfigError, LostPeerError, RunError
from clew.recipe import Recipe
from clew.runs import Run
from clew.storage import is_url
from clew.training.asynchronous.flat_model import FlatModel
from clew.training.asynchronous.layout import COORDINATOR, Roles
from clew.training.asynchronous.messaging.frames import message_limit
from clew.training.asynchronous.messaging.join_token import JoinToken, load_or_make_token
from clew.training.asynchronous.messaging.tcp import TcpClient, TcpServer
from clew.training.asynchronous.rank_entry import AsynchronousTraining, make_coordinator, run_worker
from clew.training.asynchronous.worker import introduce
from clew.training.config import TrainConfig
from clew.training.device import select_device
from clew.training.validation import build_model

PATIENCE = 600.0
"""Seconds for which a worker tries to reach its master."""
_CLEW = "from clew.cli.main import run; run()"
_HELLO_INTERVAL = 2.0
"""Seconds between two hellos."""
_EXIT_TIMEOUT = 5.0
"""Seconds after the end of the training in which local workers must exit."""


def listen(training: AsynchronousTraining) -> str:
    """Coordinate the workers that join; return why the training ended before its last epoch, or ''."""
    run, config = training.run, training.config
    address = str(config.asynchronous.listen)
    if address.endswith(":0") and run.address_file.exists():  # workers look for a resumed master at its old address
        address = run.address_file.read_text()
    token = load_or_make_token(run.token_file)
    limit = message_limit(FlatModel(build_model(training.recipe)).length)
    document = {"document": {**run.config().data, "train": to_data(config)}}
    with contextlib.closing(TcpServer(address, token=token, max_bytes=limit)) as server:
        write_text(run.address_file, server.address)
        command = f"clew worker {server.address} --token-file {run.token_file}"
        training.writer.write("note", message=f"workers join with: {command}")
        coordinator = make_coordinator(training, server, Roles(config, 1), document=document)
        with contextlib.closing(coordinator), _local_workers(run, config, server.address):
            coordinator.serve()
    return coordinator.records.end_reason


@contextlib.contextmanager
def _local_workers(run: Run, config: TrainConfig, address: str) -> Iterator[None]:
    """Start `train.workers` workers on this machine; they end with the training."""
    command = [sys.executable, *safe_path(), "-c", _CLEW, "worker", address, "--token-file", str(run.token_file)]
    threads = {} if config.threads is None else {"OMP_NUM_THREADS": str(config.threads)}
    options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    options["process_group"] = 0  # Ctrl-C is for the coordinator, which ends them
    workers = [subprocess.Popen(command, env={**os.environ, **threads}, **options) for _ in range(config.workers)]
    try:
        yield
    finally:
        deadline = time.monotonic() + _EXIT_TIMEOUT
        for worker in workers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.wait(max(0.1, deadline - time.monotonic()))
            if worker.poll() is None:
                worker.kill()
                worker.wait()


def join(
    address: str,
    token: JoinToken,
    build: Callable[[Mapping[str, Any]], tuple[Recipe, TrainConfig]],
    *,
    dataset: Path | None = None,
    patience: float = PATIENCE,
    report: Callable[[str], None] = lambda message: None,
) -> int:
    """Work for the master at an address until the training is over.

    A master that is gone is looked for again, for `patience` seconds.

    Args:
        address: The `host:port` of the master.
        token: Its token.
        build: Makes a recipe and settings from the document that the master sends.
        dataset: Where the samples are on this machine, if not at the master's path.
        patience: Seconds for which a master is looked for.
        report: Called with messages for the user.

    Returns:
        The number of batches that were trained on.

    Raises:
        ConfigError: The master refused this worker, or the dataset does not exist.
        RunError: No master answered.
    """
    batches = 0
    while True:
        with contextlib.closing(TcpClient()) as client:
            client.connect(COORDINATOR, address, token)
            welcome = _introduce_repeatedly(client, address, token, patience, report)
            if welcome is None:
                raise RunError(f"no master at {address} answered in {patience:g} s; is the training still running?")
            client.number = int(welcome["number"])
            client.start_heartbeat(address, token, patience=patience)
            recipe, config = build(welcome["document"])
            if dataset is not None:
                config = config.model_copy(update={"dataset": str(dataset.absolute())})
            if not is_url(config.dataset) and not Path(config.dataset).exists():
                raise ConfigError(f"{config.dataset}: no such dataset on this machine; set its path with --dataset")
            report(f"worker {client.number} of {welcome['document'].get('recipe', 'a model')}")
            slices = Roles(config, 1).slices_for(0, FlatModel(recipe.model()).length)
            device = select_device(int(os.environ.get("LOCAL_RANK", "0")), config.device)
            try:
                batches += run_worker(None, recipe, config, client, slices, device)
                return batches
            except LostPeerError as error:
                report(f"{error}; looking for the master")


def _introduce_repeatedly(
    client: TcpClient, address: str, token: JoinToken, patience: float, report: Callable[[str], None]
) -> dict[str, Any] | None:
    """Send hellos until the master answers. A hello is lost if the master is killed before it reads it."""
    deadline, refused = time.monotonic() + patience, False
    while time.monotonic() < deadline:
        welcome = introduce(client, timeout=min(_HELLO_INTERVAL, patience))
        if welcome is not None:
            return welcome
        if client.is_refused(COORDINATOR):
            if not refused:
                report(f"the process at {address} does not accept this token, or is another one; trying again")
            refused = True
            client.connect(COORDINATOR, address, token)
    return None
