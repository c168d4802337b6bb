"""Workers that join and leave while a training goes on: the master's side, and theirs."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from clew.core.config import to_data
from clew.core.files import write_text
from clew.errors import ConfigError, LostPeerError, RunError
from clew.recipe import Recipe
from clew.runs import RecordWriter, Run
from clew.storage import is_url
from clew.training.asynchronous.messaging.tcp import Client, Server, Token, is_local
from clew.training.asynchronous.roles import Roles, make_coordinator, work
from clew.training.asynchronous.worker import introduce
from clew.training.config import TrainConfig
from clew.training.stop_signal import StopSignal
from clew.training.training_data import default_device

PATIENCE = 600.0
"""Seconds for which a worker looks for its master."""
_CLEW = "from clew.cli.main import run; run()"


def token_of(run: Run, *, encrypted: bool) -> Token:
    """What workers need to join a run: the same each time it goes on. Only the owner can read the file."""
    if run.token_file.exists():
        known, _, secret = run.token_file.read_text().partition("\n")
        found = Token.parse(known)
        return Token(found.word, found.public, secret.strip())
    token = Token.new(encrypted=encrypted)
    descriptor = os.open(run.token_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(f"{token}\n{token.secret}\n")
    return token


def listen(
    run: Run, recipe: Recipe, config: TrainConfig, writer: RecordWriter, stop: StopSignal, *, resume: bool
) -> str:
    """Be the master of whoever comes; why the training ended before its last epoch, if it did."""
    address = str(config.central.listen)
    if address.endswith(":0") and run.address_file.exists():  # workers look for a master that goes on where it was
        address = run.address_file.read_text()
    token = token_of(run, encrypted=not is_local(address.rpartition(":")[0]))
    document = {"document": {**run.config().data, "train": to_data(config)}}
    with contextlib.closing(Server(address, token=token)) as server:
        write_text(run.address_file, server.address)
        writer.write("note", message=f"workers join by: clew worker {server.address} --token-file {run.token_file}")
        coordinator = make_coordinator(
            run, recipe, config, writer, stop, server, Roles(config, 1), resume=resume, document=document
        )
        with contextlib.closing(coordinator), _helped(run, config, server.address):
            coordinator.serve()
    return coordinator.book.over


@contextlib.contextmanager
def _helped(run: Run, config: TrainConfig, address: str) -> Any:
    """Workers of this machine, as many as the settings ask for, which end with the training."""
    command = [sys.executable, "-c", _CLEW, "worker", address, "--token-file", str(run.token_file)]
    threads = {} if config.threads is None else {"OMP_NUM_THREADS": str(config.threads)}
    started = [
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env={**os.environ, **threads})
        for _ in range(config.workers)
    ]
    try:
        yield
    finally:
        end = time.monotonic() + 5
        for each in started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                each.wait(max(0.1, end - time.monotonic()))
            if each.poll() is None:
                each.kill()
                each.wait()


def join(
    address: str,
    token: Token,
    build: Callable[[Mapping[str, Any]], tuple[Recipe, TrainConfig]],
    *,
    dataset: Path | None = None,
    patience: float = PATIENCE,
    told: Callable[[str], None] = lambda words: None,
) -> int:
    """Work for the master at an address until the training is over; how many batches were learned from.

    `build` makes a recipe and settings of the document a master sends; `dataset` is where the samples are here, if not
    where the master has them. A master that is gone is looked for again, for `patience` seconds.

    Raises:
        ConfigError: the master refused this worker.
        RunError: there is no master, or none any more.
    """
    done = 0
    while True:
        with contextlib.closing(Client()) as client:
            client.connect(0, address, token)
            facts = _welcome(client, patience)
            if facts is None:
                raise RunError(f"no master at {address} answered in {patience:g} s; is the training still going on?")
            client.here = int(facts["number"])
            client.watch(address, token, patience=patience)
            recipe, config = build(facts["document"])
            if dataset is not None:
                config = config.model_copy(update={"dataset": str(dataset.absolute())})
            if not is_url(config.dataset) and not Path(config.dataset).exists():
                raise ConfigError(f"{config.dataset}: no such dataset here; say where it is with --dataset")
            told(f"worker {client.here} of {facts['document'].get('recipe', 'a model')}")
            from clew.training.asynchronous.flat_model import Vector

            parts = Roles(config, 1).parts(0, Vector(recipe.model()).length)
            try:
                done += work(
                    None, recipe, config, client, parts, default_device(int(os.environ.get("LOCAL_RANK", "0")))
                )
                return done
            except LostPeerError as error:
                told(f"{error}; looking for the master")


def _welcome(client: Client, patience: float) -> dict[str, Any] | None:
    """A hello may be lost with a master that is killed: it is said again."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        facts = introduce(client, timeout=min(2.0, patience))
        if facts is not None:
            return facts
    return None
