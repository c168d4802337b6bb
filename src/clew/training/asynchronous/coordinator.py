"""The first master's loop: who is there, who works on what, what becomes of updates, when to judge and when to end."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from clew.errors import LeaseError, LostPeerError, RunError, StoppedError
from clew.training.asynchronous.batch_leases import Leases
from clew.training.asynchronous.coordinator_records import Book
from clew.training.asynchronous.flat_model import Vector, fingerprint
from clew.training.asynchronous.master import Holder, sound
from clew.training.asynchronous.master_links import Others
from clew.training.asynchronous.membership import Cluster, Member, Members
from clew.training.asynchronous.messaging import Message, Post
from clew.training.asynchronous.state_bytes import from_bytes, to_bytes
from clew.training.config import TrainConfig
from clew.training.stop_signal import StopSignal
from clew.version import __version__

ROUNDS = ("diloco", "backup")
"""Strategies in which the master waits for updates of several workers before it answers."""
_TICK, _STATES = 0.1, 5.0
"""Seconds: between two looks around, and for workers to send their states."""
_FAREWELL, _TEAM = 30.0, 600.0
"""Seconds to say good-bye: for whoever is there, and for those of a fixed team, of which one may begin late."""


class Coordinator:
    """Serves until everything is done. `handle` and `tick` are what it does; nothing in it waits for a worker."""

    def __init__(
        self,
        post: Post,
        book: Book,
        vector: Vector,
        config: TrainConfig,
        stop: StopSignal,
        cluster: Cluster,
        document: Mapping[str, Any] | None = None,
    ) -> None:
        self.post, self.book, self.vector, self.config, self.stop = post, book, vector, config, stop
        self.cluster, self.document = cluster, dict(document or {})
        central = config.central
        values = vector.whole()
        self.values = values
        own = values[cluster.own.first : cluster.own.stop]
        parameters = max(0, min(vector.size, cluster.own.stop) - cluster.own.first)
        self.holder = Holder(own, parameters, config, add=bool(cluster.heads))
        self.leases = Leases(
            book.batches,
            config.epochs,
            most=config.steps,
            least=config.exchange_interval,
            patience=central.lease_seconds,
        )
        self.members = Members()
        self.finished = False
        self._enough = False
        """Whether those that must be there before the first batch were."""
        self._round: dict[int, Message] = {}
        self._held: list[Message] = []
        self.others = Others(post, cluster.shards, cluster.heads, self._take_from_head)
        self._states: list[Tensor] = []
        self._saving: float | None = None
        self._stopping = False
        self._farewell: float | None = None
        self._looked = 0.0
        self._told_apart = [0, 0]
        """Messages that workers sent and received, by their own count."""

    def begin(self) -> None:
        """Wait for the other masters, and give them their parts."""
        self.others.begin(self.values)

    def serve(self) -> None:
        """Until all is done and everybody has said good-bye.

        Raises:
            StoppedError: told to stop; a state to go on from is there.
        """
        while not self.finished:
            message = self.others.later.popleft() if self.others.later else self.post.receive(_TICK)
            if message is not None:
                self.handle(message)
            if time.monotonic() - self._looked > _TICK:
                self.tick()
        if self._stopping:
            why = f" ({self.stop.why})" if self.stop.why else ""
            told = f"stopped at step {self.leases.done}{why}"
            raise StoppedError(f"{told}; go on with: clew train --resume {self.book.path}")

    def handle(self, message: Message) -> None:
        """Do what a message asks for."""
        if message.peer in self.cluster.heads:
            self._take_from_head(message)
            return
        if message.kind not in ("hello", "ready", "failed") and message.peer not in self.members:
            self._answer(message.peer, "refused", {"why": "this worker was given up; its batches went to others"})
            return
        do = getattr(self, f"_on_{message.kind}", None)
        if do is None:
            self._refuse(message.peer, f"it said '{message.kind}', which means nothing here")
        else:
            do(message)

    def tick(self) -> None:
        """Look around: who is gone, what is due."""
        before, self._looked = self._looked, time.monotonic()
        heard = getattr(self.post, "heard", {})
        away = self._looked - before  # signs of life that came meanwhile may not have been read yet
        for peer in self.members.silent(heard, self.book.silence + away) if heard else ():
            self._lose(peer, "no sign of life")
        for peer in self.leases.expired():
            self._lose(peer, f"no progress in {self.config.central.lease_seconds:g} s")
        self.book.record(self.leases.done, self.members)
        self.book.listen()
        self.book.advance()
        self.stop.beat()
        if self.stop.lost:
            raise LeaseError(f"{self.book.path} was handed to another at step {self.leases.done}; this one leaves")
        if self.stop.wanted and not self._stopping and not self.leases.over:
            self._stopping, self._saving = True, self._want_states()
        elif self._saving is None and self.book.save_due():
            self._saving = self._want_states()
        if self._saving is not None and (self._looked > self._saving or self.members.answered):
            self._save()
        self._maybe_end()

    def _on_hello(self, message: Message) -> None:
        version = message.facts.get("clew")
        if version != __version__:
            self._refuse(message.peer, f"it runs clew {version}, the master {__version__}; install the same")
            return
        self._answer(message.peer, "welcome", {"number": message.peer, **self.document})

    def _on_ready(self, message: Message) -> None:
        if message.facts["model"] != fingerprint(self.book.model):
            self._refuse(message.peer, "it has another model; give it the recipe and settings of the run")
            return
        member = self.members[message.peer] = Member(str(message.facts.get("host", "")))
        if self.config.central.listen:
            self.book.note(f"worker {message.peer} ({member.host}) joined", joined=message.peer)
        if self._states:
            member.restore = self._states.pop(0)
        self._answer(message.peer, "told", self._told(message.peer))

    def _on_report(self, message: Message) -> None:
        void = not self._report(message)
        self._answer(message.peer, "told", {**self._told(message.peer, message.facts.get("want")), "void": void})

    def _on_pull(self, message: Message) -> None:
        self._give(message.peer, {})

    def _on_push(self, message: Message) -> None:
        if not self._current(message):
            self._void(message.peer)
        elif self.config.strategy in ROUNDS:
            self._round[message.peer] = message
            self._close_round()
        elif self._too_early(message.peer):
            self._held.append(message)
        else:
            self._apply(message)
            self._release()

    def _on_commit(self, message: Message) -> None:
        void = not self._current(message) or not self._taken(message)
        self._answer(message.peer, "told", {**self._told(message.peer, message.facts.get("want")), "void": void})

    def _on_state(self, message: Message) -> None:
        member = self.members[message.peer]
        assert message.tensor is not None
        member.state, member.asked = message.tensor.clone(), False
        if self._saving is not None and self.members.answered:
            self._save()  # at once: of a single worker the state is then of the same moment as the weights
        self._answer(message.peer, "told", self._told(message.peer))

    def _on_restore(self, message: Message) -> None:
        member = self.members[message.peer]
        tensor, member.restore = member.restore, None
        self._answer(message.peer, "restored", {}, tensor)

    def _on_snapshot(self, message: Message) -> None:
        self._answer(message.peer, "snapshot", {}, self.book.snapshot(int(message.facts["number"])))

    def _on_tallies(self, message: Message) -> None:
        self.book.judged(message.facts, message.peer)
        self._answer(message.peer, "told", self._told(message.peer))

    def _on_failed(self, message: Message) -> None:
        """A worker could not go on; where others may take over, they do."""
        self._lose(message.peer, str(message.facts["why"]))
        self.book.failed(message.peer, str(message.facts["why"]), last=not self.config.central.listen)

    def _on_bye(self, message: Message) -> None:
        self._told_apart[0] += int(message.facts["sent"])
        self._told_apart[1] += int(message.facts["received"])
        self._answer(message.peer, "bye", {})
        self._lose(message.peer, "")

    def _current(self, message: Message) -> bool:
        """Whether an update is still wanted: its batches are its sender's, and of this round where that counts."""
        held = all(self.leases.holds(lease, message.peer) for lease, _ in message.facts["done"])
        stale = self.config.strategy == "backup" and int(message.facts["version"]) < self.holder.version
        return held and not stale

    def _apply(self, message: Message) -> None:
        if self._taken(message):
            self._give(message.peer, self._told(message.peer, message.facts.get("want")))
        else:
            self._void(message.peer)

    def _taken(self, message: Message) -> bool:
        assert message.tensor is not None
        self.holder.rate(self.book.rate(self.leases.done))
        if not self.holder.take(message.tensor, message.facts):
            self._bad(message.peer)
            return False
        self._report(message)
        return True

    def _bad(self, peer: int) -> None:
        member = self.members[peer]
        member.bad += 1
        if member.bad > 1:
            raise RunError(
                f"worker {peer} ({member.host}) sent an update that is not finite, and again after it had been refused;"
                " lower train.optimizer.lr or set train.clip"
            )
        self.book.note(f"refused an update of worker {peer} that is not finite")

    def _void(self, peer: int) -> None:
        """An update that is not taken: what it was made from goes back to the queue."""
        self.leases.give_back(peer)
        for shard in self.cluster.shards if self.config.strategy in ROUNDS else ():
            self.post.send(shard.peer, "drop", {"peer": peer})
        self._give(peer, {**self._told(peer), "void": True})

    def _give(self, peer: int, facts: dict[str, Any]) -> None:
        if peer in self.members:
            self.members[peer].version = self.holder.version
        own = self.holder.values
        sent = own if self.config.central.transfer == "float32" else own.bfloat16()
        self._answer(peer, "weights", {**facts, "version": self.holder.version}, sent)

    def _too_early(self, peer: int) -> bool:
        """Whether taking an update now would leave a worker that is at work too far behind."""
        bound = self.config.central.staleness
        if bound is None:
            return False
        waiting = {message.peer for message in self._held} | {peer}
        bound = max(bound, len(self.members) - 1)
        newest = self.holder.version + len(self._held)
        return any(newest - self.members[p].version >= bound for p in self.members.busy() if p not in waiting)

    def _release(self) -> None:
        held, self._held = self._held, []
        for message in held:
            self._on_push(message)

    def _close_round(self) -> None:
        """Take the mean of a round's updates once enough are there."""
        busy = self.members.busy()
        need = len(busy) if self.config.strategy == "diloco" else -(-len(busy) * self.config.central.quorum // 1)
        if not self._round or len(self._round) < need:
            return
        given, self._round = self._round, {}
        good = {p: m for p, m in given.items() if m.tensor is not None and sound(m.tensor, m.facts)}
        for peer in given.keys() - good.keys():
            self._bad(peer)
            self._void(peer)
        if not good:
            return
        self.holder.rate(self.book.rate(self.leases.done))
        shares = [float(sum(count for _, count in message.facts["done"])) for message in good.values()]
        for shard in self.cluster.shards:
            self.post.send(shard.peer, "close", {"peers": list(good), "shares": shares})
        for message in good.values():
            self.holder.staleness[self.holder.version - int(message.facts["version"])] += 1
        self.holder.take_mean([m.tensor for m in good.values() if m.tensor is not None], shares)
        for peer, message in good.items():
            self._report(message)
            self._give(peer, self._told(peer, message.facts.get("want")))

    def _take_from_head(self, message: Message) -> None:
        assert message.tensor is not None
        self.holder.take(message.tensor, message.facts)
        self._answer(message.peer, "weights", {"version": self.holder.version}, self.holder.values)

    def _report(self, message: Message) -> bool:
        """Count what a worker has done; False if its lease was not its any more."""
        facts = message.facts
        if not all(self.leases.holds(lease, message.peer) for lease, _ in facts["done"]):
            return False
        for lease, count in facts["done"]:
            self.leases.finish(lease, count)
        self.members[message.peer].add(facts)
        self.book.add(facts)
        while self.book.epochs < self.leases.epochs_done:
            self.book.epoch_over(self._gathered(), self.leases.done, self._facts())
        return True

    def _told(self, peer: int, want: Any = False) -> dict[str, Any]:
        """What a worker should know: how far the training is, what to do next."""
        member = self.members[peer]
        told: dict[str, Any] = {"step": self.leases.done, "workers": len(self.members), "version": self.holder.version}
        if self._over():
            return {**told, "end": True, **({"state": True} if member.asked else {})}
        part = self.book.part_for(peer, len(self.members))
        if part is not None:
            told["judge"] = part
        if want and not self.book.over and not self._stopping and self._may_work(peer):
            lease = self.leases.take(peer, max(len(self.members), 1))
            member.idle = lease is None
            if lease is not None:
                told["lease"] = [lease.number, lease.epoch, lease.first, lease.stop]
            elif self._round:
                self.others.later.append(Message(peer, "idle", {}))
        if member.asked:
            told["state"] = True
        if member.restore is not None:
            told["restore"] = True
        return told

    def _on_idle(self, message: Message) -> None:
        """A worker found nothing to do: a round may have waited for it."""
        self._close_round()

    def _may_work(self, peer: int) -> bool:
        self._enough = self._enough or len(self.members) >= self.config.central.wait_for or self.leases.done > 0
        return self._enough and (self.leases.done >= self.config.central.warmup or peer == min(self.members))

    def _lose(self, peer: int, why: str) -> None:
        member = self.members.leave(peer)
        if member is None:
            return
        back = self.leases.give_back(peer)
        self.book.left(peer)
        self._round.pop(peer, None)
        self._held = [message for message in self._held if message.peer != peer]
        if why:
            self.book.note(f"worker {peer} ({member.host}) is gone: {why}; {back} batches wait again")
            forget = getattr(self.post, "forget", None)
            if forget is not None:
                forget(peer)
        self._close_round()
        self._release()

    def _refuse(self, peer: int, why: str) -> None:
        self.book.note(f"refused worker {peer}: {why}")
        self._answer(peer, "refused", {"why": why})

    def _answer(self, peer: int, kind: str, facts: dict[str, Any], tensor: Tensor | None = None) -> None:
        try:
            self.post.send(peer, kind, facts, tensor)
        except LostPeerError as error:
            self._lose(peer, str(error))

    def _facts(self) -> dict[str, Any]:
        """How the workers are doing, for the records."""
        return {
            "workers": self.members.facts(),
            "staleness": {str(age): count for age, count in sorted(self.holder.staleness.items())},
            "bytes": self.post.bytes,
            "returned": self.leases.returned,
            "messages": {"sent": self.post.sent, "received": self.post.received, "workers": self._told_apart},
        }

    def _want_states(self) -> float:
        self.members.want_states()
        return time.monotonic() + _STATES

    def _save(self) -> None:
        self._saving = None
        self.vector.fill(self._gathered())
        optimizers = [to_bytes(self.holder.optimizer.state_dict()), *self.others.states()]
        self.book.save(
            self.leases.done,
            {
                "model": self.book.model.state_dict(),
                "workers": self.members.states(),
                "masters": optimizers,
                "leases": self.leases.state(),
                "version": self.holder.version,
            },
        )

    def restore(self) -> None:
        """Go on from the newest state."""
        state = self.book.restore()
        self.values.copy_(self.vector.whole())  # the book has put the weights into the model
        self.holder.optimizer.load_state_dict(from_bytes(state["masters"][0]))
        self.holder.version = int(state["version"])
        self.leases.restore(state["leases"])
        self._states = list(state["workers"])
        self.others.optimizers = list(state["masters"][1:])

    def close(self) -> None:
        """Let what was begun end."""
        self.book.end()

    def _gathered(self) -> Tensor:
        """A copy of the central weights, of all masters."""
        self.others.gather(self.values)
        return self.values.clone()

    def _over(self) -> bool:
        done = (self.leases.over or bool(self.book.over)) and not self.book.busy
        return (done and self._saving is None) or (self._stopping and self._saving is None)

    def _maybe_end(self) -> None:
        if not self._over():
            return
        now = time.monotonic()
        if self._farewell is None:
            self._farewell = now + (_TEAM if self.cluster.workers else _FAREWELL)
        missing = len(self.members) or len(self.members.lost) < self.cluster.workers
        if not missing or now > self._farewell:
            self.others.end()
            self.book.close(self.leases.done, self._facts(), self.members)
            self.finished = True
