"""The loop of the coordinator: connect workers, lease batches, apply updates, request validations, end the training."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from clew.errors import LeaseError, LostPeerError, error_from_process
from clew.training.asynchronous.batch_leases import BatchLeases
from clew.training.asynchronous.connected_workers import ConnectedWorker, ConnectedWorkers
from clew.training.asynchronous.coordinator_records import CoordinatorRecords
from clew.training.asynchronous.flat_model import FlatModel, model_fingerprint
from clew.training.asynchronous.layout import ClusterLayout
from clew.training.asynchronous.master_links import MasterLinks
from clew.training.asynchronous.master_weights import MasterWeights
from clew.training.asynchronous.messaging import Message, MessageTransport
from clew.training.asynchronous.state_bytes import state_from_bytes, state_to_bytes
from clew.training.asynchronous.update_handler import UpdateHandler
from clew.training.config import TrainConfig
from clew.training.stop_signal import StopSignal
from clew.version import __version__

_TICK, _STATES_TIMEOUT = 0.1, 5.0
"""Seconds: between two calls of `tick`, and for workers to send their states."""
_GOODBYE_TIMEOUT, _TEAM_TIMEOUT = 30.0, 600.0
"""Seconds to wait at the end for workers to leave: for those that joined by themselves, and for a team that a launcher
started, of which one may start late."""


class Coordinator:
    """Serves workers until the training is done. `handle` and `tick` do the work; neither waits for a worker."""

    def __init__(
        self,
        transport: MessageTransport,
        records: CoordinatorRecords,
        flat_model: FlatModel,
        layout: ClusterLayout,
        stop: StopSignal,
        document: Mapping[str, Any] | None = None,
    ) -> None:
        """Make a coordinator with the weights of a model.

        Args:
            transport: Reaches workers and masters.
            records: Writes records and checkpoints, and validates.
            flat_model: The model; its weights are the first central weights.
            layout: The other processes.
            stop: Whether the training is to stop.
            document: The settings that are sent to workers which join by themselves.
        """
        self.transport, self.records, self.flat_model, self.stop = transport, records, flat_model, stop
        self.config: TrainConfig = records.config
        self.layout, self.document = layout, dict(document or {})
        self.values = flat_model.copy()
        """All central weights. The slices of other masters are only up to date after `MasterLinks.gather`."""
        part = layout.coordinator_slice
        parameters = max(0, min(flat_model.parameter_count, part.stop) - part.start)
        self.master = MasterWeights(
            self.values[part.start : part.stop], parameters, self.config, above_groups=bool(layout.group_masters)
        )
        self.leases = BatchLeases(
            records.batches,
            self.config.epochs,
            max_batches=self.config.steps,
            min_lease=self.config.exchange_interval,
            timeout=self.config.asynchronous.lease_seconds,
        )
        self.workers = ConnectedWorkers()
        self.updates = UpdateHandler(self)
        self.links = MasterLinks(transport, layout.shards, layout.group_masters, self.updates.apply_group_update)
        self.finished = False
        self._enough_workers = False
        """Whether `wait_for` workers were connected at some time."""
        self._unclaimed_states: list[Tensor] = []
        """States of a checkpoint that no worker has taken yet."""
        self._save_deadline: float | None = None
        """While workers are asked for their states: when the checkpoint is written without the missing ones."""
        self._stopping = False
        self._goodbye_deadline: float | None = None
        self._last_tick = 0.0
        self._worker_messages = [0, 0]
        """Messages that workers sent and received, by their own count."""

    def begin(self) -> None:
        """Wait for the other masters, and send them their weights."""
        self.links.begin(self.values)

    def serve(self) -> None:
        """Serve until the training is done and all workers have left.

        Raises:
            StoppedError: The training was stopped, and can be resumed.
        """
        self.stop.can_save = True
        while not self.finished:
            message = self.links.later.popleft() if self.links.later else self.transport.receive(_TICK)
            if message is not None:
                self.handle(message)
            if time.monotonic() - self._last_tick > _TICK:
                self.tick()
        if self._stopping:
            raise self.stop.stopped_error(self.leases.done, self.records.path)

    def handle(self, message: Message) -> None:
        """Handle one message: `_on_KIND` is called."""
        if message.peer in self.layout.group_masters:
            self.updates.apply_group_update(message)
            return
        if message.kind not in ("hello", "ready", "failed") and message.peer not in self.workers:
            reason = "this worker was considered lost; its batches went to others"
            self.answer(message.peer, "refused", {"reason": reason})
            return
        handler = getattr(self, f"_on_{message.kind}", None)
        if handler is None:
            self._refuse(message.peer, f"it sent a message of unknown kind '{message.kind}'")
        else:
            handler(message)

    def tick(self) -> None:
        """Do what is due: remove lost workers, write records, validate, write checkpoints, stop, end."""
        previous, self._last_tick = self._last_tick, time.monotonic()
        heartbeats = self.transport.last_heartbeat
        delay = self._last_tick - previous  # heartbeats that came since then may not have been read yet
        for peer in self.workers.silent(heartbeats, self.records.heartbeat_timeout + delay) if heartbeats else ():
            self._remove_worker(peer, "no heartbeat")
        for peer in self.leases.expired():
            self._remove_worker(peer, f"no progress in {self.config.asynchronous.lease_seconds:g} s")
        self.records.write_step(self.leases.done, len(self.workers))
        self.records.write_checkpoints()
        self.records.advance_validation()
        self.stop.renew_lease()
        if self.stop.lease_lost:
            path, step = self.records.path, self.leases.done
            raise LeaseError(f"{path} was given to another process at step {step}; this process ends")
        if self.stop.requested and not self._stopping and not self.leases.finished:
            self._stopping = True
            self._request_states()
        elif self._save_deadline is None and self.records.save_due():
            self._request_states()
        if self._save_deadline is not None and (self._last_tick > self._save_deadline or self.workers.all_states_sent):
            self._save()
        self._end_if_done()

    def _on_hello(self, message: Message) -> None:
        version = message.fields.get("clew")
        if version != __version__:
            self._refuse(message.peer, f"it runs clew {version}, the master {__version__}; install the same")
            return
        self.answer(message.peer, "welcome", {"number": message.peer, **self.document})

    def _on_ready(self, message: Message) -> None:
        if message.fields["model"] != model_fingerprint(self.records.model):
            self._refuse(message.peer, "it has another model; give it the recipe and settings of the run")
            return
        worker = self.workers[message.peer] = ConnectedWorker(str(message.fields.get("host", "")))
        if self.config.asynchronous.listen:
            self.records.write_note(f"worker {message.peer} ({worker.host}) joined", joined=message.peer)
        if self._unclaimed_states:
            worker.restore = self._unclaimed_states.pop(0)
        self.send_status(message)

    def _on_report(self, message: Message) -> None:
        void = not self.count_report(message)
        self.send_status(message, void=void)

    def _on_pull(self, message: Message) -> None:
        self.updates.send_weights(message.peer, {})

    def _on_push(self, message: Message) -> None:
        self.updates.push(message)

    def _on_commit(self, message: Message) -> None:
        self.send_status(message, void=not self.updates.commit(message))

    def _on_state(self, message: Message) -> None:
        worker = self.workers[message.peer]
        assert message.tensor is not None
        worker.state, worker.state_requested = message.tensor.clone(), False
        if self._save_deadline is not None and self.workers.all_states_sent:
            self._save()  # at once: so the state of a single worker matches the weights
        self.send_status(message)

    def _on_restore(self, message: Message) -> None:
        worker = self.workers[message.peer]
        tensor, worker.restore = worker.restore, None
        self.answer(message.peer, "restored", {}, tensor)

    def _on_snapshot(self, message: Message) -> None:
        weights = self.records.validation.weights(int(message.fields["number"]))
        self.answer(message.peer, "snapshot", {}, weights)

    def _on_metrics(self, message: Message) -> None:
        self.records.add_metrics(message.peer, message.fields)
        self.send_status(message)

    def _on_failed(self, message: Message) -> None:
        """A worker failed. If workers can join, others take over; else the training fails."""
        reason = str(message.fields["reason"])
        self._remove_worker(message.peer, reason)
        if not self.config.asynchronous.listen:
            raise error_from_process(f"worker {message.peer}", str(message.fields.get("kind", "")), reason)

    def _on_goodbye(self, message: Message) -> None:
        self._worker_messages[0] += int(message.fields["sent"])
        self._worker_messages[1] += int(message.fields["received"])
        self.answer(message.peer, "goodbye", {})
        self._remove_worker(message.peer, "")

    def _on_idle(self, message: Message) -> None:
        """A worker got no lease: a round may have waited for it."""
        self.updates.close_round()

    def count_report(self, message: Message) -> bool:
        """Count what a worker reports to have done; False if a lease is no longer its own."""
        report = message.fields
        if not self.holds_leases(message):
            return False
        for lease, count in report["done"]:
            self.leases.finish(lease, count)
        self.workers[message.peer].add_report(report)
        self.records.add_report(report)
        while self.records.epochs < self.leases.epochs_done:
            self.records.end_epoch(self._gather(), self.leases.done, self._summary())
        return True

    def holds_leases(self, message: Message) -> bool:
        """Return whether all leases in a worker's report are still assigned to it."""
        return all(self.leases.belongs_to(lease, message.peer) for lease, _ in message.fields["done"])

    def send_status(self, message: Message, *, void: bool | None = None) -> None:
        """Answer a message with what the worker should know and do next."""
        status = self.status_for(message.peer, message.fields.get("wants_lease"))
        self.answer(message.peer, "status", status if void is None else {**status, "void": void})

    def status_for(self, peer: int, wants_lease: Any = False) -> dict[str, Any]:
        """Return what a worker should know and do next: the step, a lease, a validation, requests, the end."""
        worker = self.workers[peer]
        status: dict[str, Any] = {
            "step": self.leases.done,
            "workers": len(self.workers),
            "version": self.master.version,
        }
        if self._done():
            return {**status, "end": True, **({"state": True} if worker.state_requested else {})}
        batches = self.records.validation.assign(peer, len(self.workers))
        if batches is not None:
            status["validate"] = batches
        if wants_lease and not self.records.end_reason and not self._stopping and self._may_train(peer):
            lease = self.leases.take(peer, max(len(self.workers), 1))
            worker.idle = lease is None
            if lease is not None:
                status["lease"] = [lease.number, lease.epoch, lease.first, lease.stop]
            elif self.updates.round_open:
                self.links.later.append(Message(peer, "idle", {}))
        if worker.state_requested:
            status["state"] = True
        if worker.restore is not None:
            status["restore"] = True
        return status

    def _may_train(self, peer: int) -> bool:
        settings, done = self.config.asynchronous, self.leases.done
        self._enough_workers = self._enough_workers or len(self.workers) >= settings.wait_for or done > 0
        return self._enough_workers and (done >= settings.warmup or peer == min(self.workers))

    def _remove_worker(self, peer: int, reason: str) -> None:
        worker = self.workers.remove(peer)
        if worker is None:
            return
        returned = self.leases.give_back(peer)
        self.records.validation.give_back(peer)
        if reason:
            text = f"worker {peer} ({worker.host}) is gone: {reason}; {returned} batches wait again"
            self.records.write_note(text)
            self.transport.disconnect(peer)
        self.updates.remove_worker(peer)

    def _refuse(self, peer: int, reason: str) -> None:
        self.records.write_note(f"refused worker {peer}: {reason}")
        self.answer(peer, "refused", {"reason": reason})

    def answer(self, peer: int, kind: str, fields: dict[str, Any], tensor: Tensor | None = None) -> None:
        """Send a message to a worker or a group's master; one that cannot be reached is removed."""
        try:
            self.transport.send(peer, kind, fields, tensor)
        except LostPeerError as error:
            self._remove_worker(peer, str(error))

    def _summary(self) -> dict[str, Any]:
        """Return what the workers have done, for the records."""
        messages = {
            "sent": self.transport.sent,
            "received": self.transport.received,
            "workers": self._worker_messages,
        }
        return {
            "workers": self.workers.summaries(),
            "staleness": {str(age): count for age, count in sorted(self.master.staleness.items())},
            "bytes": self.transport.bytes,
            "returned": self.leases.returned,
            "messages": messages,
        }

    def _request_states(self) -> None:
        self.workers.request_states()
        self._save_deadline = time.monotonic() + _STATES_TIMEOUT

    def _save(self) -> None:
        self._save_deadline = None
        self.flat_model.load(self._gather())
        optimizers = [state_to_bytes(self.master.optimizer.state_dict()), *self.links.optimizer_states()]
        self.records.save(
            self.leases.done,
            {
                "model": self.records.model.state_dict(),
                "workers": self.workers.states(),
                "masters": optimizers,
                "leases": self.leases.state(),
                "version": self.master.version,
            },
        )

    def restore(self) -> None:
        """Continue from the newest checkpoint."""
        state = self.records.restore()
        self.values.copy_(self.flat_model.copy())  # `records.restore` has loaded the weights into the model
        self.master.optimizer.load_state_dict(state_from_bytes(state["masters"][0]))
        self.master.version = int(state["version"])
        self.leases.restore(state["leases"])
        self._unclaimed_states = list(state["workers"])
        self.links.optimizers = list(state["masters"][1:])

    def close(self) -> None:
        """End the threads and processes of the records."""
        self.records.close()

    def _gather(self) -> Tensor:
        """Return a copy of the central weights of all masters."""
        self.links.gather(self.values)
        return self.values.clone()

    def _done(self) -> bool:
        trained = (self.leases.finished or bool(self.records.end_reason)) and not self.records.validation.pending
        return (trained or self._stopping) and self._save_deadline is None

    def _end_if_done(self) -> None:
        """End once all workers have left, or the time for that is over."""
        if not self._done():
            return
        now = time.monotonic()
        if self._goodbye_deadline is None:
            self._goodbye_deadline = now + (_TEAM_TIMEOUT if self.layout.workers else _GOODBYE_TIMEOUT)
        missing = len(self.workers) or len(self.workers.departed) < self.layout.workers
        if not missing or now > self._goodbye_deadline:
            self.links.end()
            self.records.finish(self.leases.done, self._summary())
            self.finished = True
