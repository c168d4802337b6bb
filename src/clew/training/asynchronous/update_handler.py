"""What the coordinator does with the updates of workers: apply, collect a round, hold back, or refuse."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clew.errors import RunError
from clew.training.asynchronous.master_weights import update_is_finite
from clew.training.asynchronous.messaging import Message
from clew.training.asynchronous.rules import make_rule

if TYPE_CHECKING:
    from clew.training.asynchronous.coordinator import Coordinator


class UpdateHandler:
    """Applies updates for a coordinator and answers with weights."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator, self._master = coordinator, coordinator.master
        self._settings = coordinator.config.asynchronous
        self._rule = make_rule(coordinator.config)
        self._round: dict[int, Message] = {}
        """The updates of the current round by worker."""
        self._held: list[Message] = []
        """Updates that wait until slower workers have caught up (`staleness`)."""

    @property
    def round_open(self) -> bool:
        """Whether updates of a round wait for others."""
        return bool(self._round)

    def push(self, message: Message) -> None:
        """Handle an update that is answered with weights."""
        if not self._acceptable(message):
            self._refuse(message.peer)
        elif self._rule.waits_for_round:
            self._round[message.peer] = message
            self.close_round()
        elif self._too_early(message.peer):
            self._held.append(message)
        else:
            self._apply_and_answer(message)
            self._release_held()

    def commit(self, message: Message) -> bool:
        """Handle an update that is answered without weights; return whether it was applied."""
        return self._acceptable(message) and self._apply(message)

    def apply_group_update(self, message: Message) -> None:
        """Apply the update of a group's master, and answer with weights."""
        assert message.tensor is not None
        self._master.apply(message.tensor, message.fields)
        fields = {"version": self._master.version}
        self._coordinator.answer(message.peer, "weights", fields, self._master.values)

    def send_weights(self, peer: int, fields: dict[str, Any]) -> None:
        """Send the coordinator's slice of the weights to a worker, with other values."""
        if peer in self._coordinator.workers:
            self._coordinator.workers[peer].version = self._master.version
        values = self._master.values
        values = values if self._settings.transfer == "float32" else values.bfloat16()
        self._coordinator.answer(peer, "weights", {**fields, "version": self._master.version}, values)

    def remove_worker(self, peer: int) -> None:
        """Drop the waiting updates of a worker that is gone; what waited for it may continue."""
        self._round.pop(peer, None)
        self._held = [message for message in self._held if message.peer != peer]
        self.close_round()
        self._release_held()

    def close_round(self) -> None:
        """Apply the mean of the round's updates once there are enough of them."""
        coordinator = self._coordinator
        if not self._round or len(self._round) < self._rule.round_size(len(coordinator.workers.busy())):
            return
        messages, self._round = self._round, {}
        updates = {p: m for p, m in messages.items() if m.tensor is not None and update_is_finite(m.tensor, m.fields)}
        for peer in messages.keys() - updates.keys():
            self._count_bad_update(peer)
            self._refuse(peer)
        if not updates:
            return
        self._master.scale_rate(coordinator.records.rate_factor(coordinator.leases.done))
        shares = [float(sum(count for _, count in message.fields["done"])) for message in updates.values()]
        for shard in coordinator.layout.shards:
            coordinator.transport.send(shard.master, "close_round", {"workers": list(updates), "shares": shares})
        for message in updates.values():
            self._master.staleness[self._master.version - int(message.fields["version"])] += 1
        self._master.apply_mean([m.tensor for m in updates.values() if m.tensor is not None], shares)
        for message in updates.values():
            coordinator.count_report(message)
            self._answer_with_weights(message)

    def _acceptable(self, message: Message) -> bool:
        """Return whether the sender still has its leases and, if the rule requires it, used the current weights."""
        stale = self._rule.refuses_stale and int(message.fields["version"]) < self._master.version
        return self._coordinator.holds_leases(message) and not stale

    def _apply_and_answer(self, message: Message) -> None:
        if self._apply(message):
            self._answer_with_weights(message)
        else:
            self._refuse(message.peer)

    def _answer_with_weights(self, message: Message) -> None:
        status = self._coordinator.status_for(message.peer, message.fields.get("wants_lease"))
        self.send_weights(message.peer, status)

    def _apply(self, message: Message) -> bool:
        assert message.tensor is not None
        coordinator = self._coordinator
        self._master.scale_rate(coordinator.records.rate_factor(coordinator.leases.done))
        if not self._master.apply(message.tensor, message.fields):
            self._count_bad_update(message.peer)
            return False
        coordinator.count_report(message)
        return True

    def _count_bad_update(self, peer: int) -> None:
        """Note an update that is not finite.

        Raises:
            RunError: It is the second one of this worker.
        """
        worker = self._coordinator.workers[peer]
        worker.bad_updates += 1
        if worker.bad_updates > 1:
            raise RunError(
                f"worker {peer} ({worker.host}) sent an update that is not finite, and again after it was refused;"
                " lower train.optimizer.lr or set train.clip"
            )
        self._coordinator.records.write_note(f"refused an update of worker {peer} that is not finite")

    def _refuse(self, peer: int) -> None:
        """Refuse an update: its batches wait again, and the worker continues from the current weights."""
        coordinator = self._coordinator
        coordinator.leases.give_back(peer)
        for shard in coordinator.layout.shards if self._rule.waits_for_round else ():
            coordinator.transport.send(shard.master, "refuse_update", {"worker": peer})
        self.send_weights(peer, {**coordinator.status_for(peer), "void": True})

    def _too_early(self, peer: int) -> bool:
        """Return whether applying an update now would leave a busy worker too many versions behind."""
        bound = self._settings.staleness
        if bound is None:
            return False
        workers = self._coordinator.workers
        waiting = {message.peer for message in self._held} | {peer}
        bound = max(bound, len(workers) - 1)
        newest = self._master.version + len(self._held)
        return any(newest - workers[p].version >= bound for p in workers.busy() if p not in waiting)

    def _release_held(self) -> None:
        held, self._held = self._held, []
        for message in held:
            self.push(message)
