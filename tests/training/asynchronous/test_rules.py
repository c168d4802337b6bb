"""Each rule against its published update, written out step by step in NumPy."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from clew.training.asynchronous.flat_model import FlatModel
from clew.training.asynchronous.master_weights import MasterWeights
from clew.training.asynchronous.messaging.transport import empty
from clew.training.asynchronous.rules import RULES, make_rule, rule_class
from clew.training.asynchronous.rules.base import Rule
from clew.training.asynchronous.rules.worker_side import PushWorkerSide, WorkerSide
from clew.training.config import TrainConfig
from clew.training.strategy_table import STRATEGIES

SIZE, STEPS = 5, 6
START = np.linspace(-1.0, 1.0, SIZE)
TARGETS = np.random.default_rng(2).normal(size=(2, SIZE))
"""Worker k minimises |w - TARGETS[k]|^2 / 2, so its gradient is w - TARGETS[k]."""
Array = NDArray[np.float64]


class Network:
    """A master and two workers that exchange in turns, without messages."""

    def __init__(self, **settings: Any) -> None:
        self.config = TrainConfig.model_validate({"workers": 2, **settings})
        start = torch.from_numpy(START.copy())
        self.master = MasterWeights(start, SIZE, self.config)
        self.sides = [self._worker_side() for _ in range(2)]
        self.versions = [0, 0]
        self.answers: list[Tensor | None] = [None, None]

    def _worker_side(self) -> WorkerSide:
        model = FlatModel(nn.Linear(SIZE, 1, bias=False).double())
        side = make_rule(self.config).worker_side(model, empty)
        side.start(self.master.values.clone())
        return side

    def weights(self, worker: int) -> Tensor:
        return self.sides[worker].model.weights

    def take_local_step(self, worker: int, rate: float) -> None:
        self.weights(worker).sub_(rate * (self.weights(worker) - torch.from_numpy(TARGETS[worker])))

    def set_gradient(self, worker: int) -> None:
        gradient = self.weights(worker) - torch.from_numpy(TARGETS[worker])
        self.sides[worker].model.parameters[0].grad = gradient.view(1, SIZE)

    def exchange(self, worker: int) -> None:
        fields = {"workers": 2, "version": self.versions[worker]}

        def request(kind: str, tensor: Tensor | None) -> Tensor:
            if tensor is not None:
                assert self.master.apply(tensor.clone(), fields)
            self.versions[worker] = self.master.version
            return self.master.values.clone()

        self.sides[worker].exchange(request, fields)

    def exchange_with_overlap(self, worker: int) -> None:
        """As a worker that trains while it waits: it takes the answer to its update before when it packs the next."""
        side, fields = self.sides[worker], {"workers": 2, "version": self.versions[worker]}
        assert isinstance(side, PushWorkerSide)
        side.pack(fields)
        answer = self.answers[worker]
        if answer is not None:
            side.take_answer(answer)
        assert self.master.apply(side.outgoing.clone(), fields)
        self.answers[worker], self.versions[worker] = self.master.values.clone(), self.master.version

    def update(self, worker: int) -> Tensor:
        """Return what a worker would send, without applying it."""
        updates: list[Tensor] = []

        def request(kind: str, tensor: Tensor | None) -> Tensor:
            assert tensor is not None
            updates.append(tensor.clone())
            return self.master.values.clone()

        self.sides[worker].exchange(request, {"workers": 2})
        return updates[0]


def assert_close(tensor: Tensor, expected: Array) -> None:
    np.testing.assert_allclose(tensor.numpy(), expected, rtol=1e-12, atol=1e-12)


def test_downpour_applies_each_gradient_with_the_masters_optimizer() -> None:
    optimizer = {"name": "sgd", "lr": 0.1, "parameters": {"momentum": 0.9}}
    network = Network(strategy="downpour", optimizer=optimizer)
    central, velocity, workers = START.copy(), np.zeros(SIZE), [START.copy(), START.copy()]
    for step in range(STEPS):
        k = step % 2
        network.set_gradient(k)
        network.exchange(k)
        gradient = workers[k] - TARGETS[k]  # of weights that are one update old
        velocity = 0.9 * velocity + gradient
        central = central - 0.1 * velocity
        workers[k] = central.copy()
        assert_close(network.master.values, central)
        assert_close(network.weights(k), workers[k])


def test_downpour_with_local_steps_adds_the_differences() -> None:
    network = Network(strategy="downpour", asynchronous={"sync_every": 2})
    central, workers = START.copy(), [START.copy(), START.copy()]
    for step in range(STEPS):
        k = step % 2
        base = workers[k].copy()
        for _ in range(2):
            network.take_local_step(k, 0.3)
            workers[k] = workers[k] - 0.3 * (workers[k] - TARGETS[k])
        network.exchange(k)
        central = central - (base - workers[k])
        workers[k] = central.copy()
        assert_close(network.master.values, central)
        assert_close(network.weights(k), workers[k])


def test_easgd_moves_centre_and_worker_towards_each_other() -> None:
    network = Network(strategy="easgd", asynchronous={"elasticity": 0.6})
    central, workers = START.copy(), [START.copy(), START.copy()]
    alpha = 0.6 / 2
    for step in range(STEPS):
        k = step % 2
        network.take_local_step(k, 0.3)
        workers[k] = workers[k] - 0.3 * (workers[k] - TARGETS[k])
        network.exchange(k)
        central = central + alpha * (workers[k] - central)
        workers[k] = workers[k] - alpha * (workers[k] - central)  # towards the centre that has already moved
        assert_close(network.master.values, central)
        assert_close(network.weights(k), workers[k])


@pytest.mark.parametrize(("workers", "alpha"), [(0, 0.4), (1, 0.4), (2, 0.2), (4, 0.1)])
def test_the_elasticity_of_easgd_is_shared_by_the_workers(workers: int, alpha: float) -> None:
    config = TrainConfig.model_validate({"strategy": "easgd", "workers": 2, "asynchronous": {"elasticity": 0.4}})
    side = make_rule(config).worker_side(FlatModel(nn.Linear(1, 1).double()), empty)
    side.start(torch.zeros(2, dtype=torch.float64))
    fields = {"workers": workers, "version": 0}
    side.exchange(lambda kind, tensor: torch.zeros(2, dtype=torch.float64), fields)
    assert fields["alpha"] == pytest.approx(alpha)


def test_a_worker_moves_at_most_half_the_way_to_the_centre() -> None:
    config = TrainConfig.model_validate({"strategy": "easgd", "workers": 2, "asynchronous": {"elasticity": 0.9}})
    side = make_rule(config).worker_side(FlatModel(nn.Linear(1, 1).double()), empty)
    side.start(torch.zeros(2, dtype=torch.float64))
    fields = {"workers": 1, "version": 0}
    side.exchange(lambda kind, tensor: torch.ones(2, dtype=torch.float64), fields)
    assert fields["alpha"] == 0.5 and side.model.weights.tolist() == [0.5, 0.5]


@pytest.mark.parametrize("rule", sorted(RULES))
def test_workers_send_their_buffers_and_take_those_of_the_centre(rule: str) -> None:
    norm = nn.BatchNorm1d(2).double()
    side = make_rule(TrainConfig.model_validate({"strategy": rule, "workers": 2})).worker_side(FlatModel(norm), empty)
    start = torch.arange(1.0, 10.0, dtype=torch.float64)  # 2 weights, 2 biases, 1 count, 2 means, 2 variances
    side.start(start)
    for parameter in norm.parameters():
        parameter.grad = torch.ones_like(parameter)
    sent: list[list[float]] = []

    def request(kind: str, tensor: Tensor | None) -> Tensor:
        sent.extend([] if tensor is None else [tensor[4:].tolist()])
        return start + 10.0

    side.exchange(request, {"workers": 2, "version": 0})
    assert norm.running_mean is not None and norm.running_var is not None
    assert sent == [start[4:].tolist()], "the centre gets the buffers of the worker"
    assert [*norm.running_mean.tolist(), *norm.running_var.tolist()] == [16.0, 17.0, 18.0, 19.0]


def test_a_checkpoint_holds_what_only_the_worker_has() -> None:
    sides = {rule: Network(strategy=rule).sides[0] for rule in RULES}
    own = {rule: sorted(side.state()) for rule, side in sides.items() if side.state()}
    assert own == {"easgd": ["weights"], "gem": ["base", "last_central", "momentum", "weights"]}
    assert sides["downpour"].state() == {}


@pytest.mark.parametrize("rule", ["easgd", "gem"])
def test_a_resumed_worker_continues_with_what_only_it_had(rule: str) -> None:
    first, second = (Network(strategy=rule).sides[0] for _ in range(2))
    for number, tensor in enumerate(first.state().values(), 1):
        tensor.fill_(number)
    saved = {name: tensor.clone() for name, tensor in first.state().items()}
    second.load_state(saved)
    assert all(torch.equal(tensor, saved[name]) for name, tensor in second.state().items())
    assert second.model.weights.tolist() == saved["weights"].tolist()


@pytest.mark.parametrize(
    ("rule", "settings", "direct"),
    [
        ("downpour", {}, True),
        ("downpour", {"sync_every": 2}, True),
        ("downpour", {"sync_every": 2, "overlap": True}, False),
        ("easgd", {}, False),
        ("gem", {}, False),
    ],
)
def test_weights_arrive_in_the_model_only_if_it_does_not_need_its_own(
    rule: str, settings: dict[str, Any], direct: bool
) -> None:
    side = Network(strategy=rule, asynchronous=settings).sides[0]
    assert (side.receive_buffer is side.model.memory) is direct
    assert (side.receive_buffer is None) is not direct


def test_downpour_with_overlap_receives_weights_where_the_model_does_not_train() -> None:
    side = Network(strategy="downpour", asynchronous={"overlap": True}).sides[0]
    assert isinstance(side, PushWorkerSide)
    for addition in (1.0, 2.0, 3.0):
        arriving = side.receive_buffer
        assert arriving is not None and arriving.data_ptr() != side.model.weights.data_ptr()
        arriving.copy_(torch.from_numpy(START + addition))
        side.take_answer(arriving)
        assert_close(side.model.weights, START + addition)
        assert side.model.weights.data_ptr() == arriving.data_ptr(), "nothing is copied"
    answer = torch.from_numpy(START + 4.0)
    side.take_answer(answer)
    answer.zero_()
    assert_close(side.model.weights, START + 4.0)


@pytest.mark.parametrize(
    ("rule", "groups", "share"), [("easgd", 3, 1 / 3), ("easgd", 1, 1.0), ("easgd", 0, 1.0), ("downpour", 3, 1.0)]
)
def test_groups_share_the_steps_of_rules_that_average(rule: str, groups: int, share: float) -> None:
    config = TrainConfig.model_validate({"strategy": rule, "workers": 6})
    assert make_rule(config).group_share(groups) == pytest.approx(share)


@pytest.mark.parametrize(
    ("settings", "gradients"),
    [
        ({}, True),
        ({"optimizer": {"name": "sgd"}}, False),
        ({"optimizer": {"name": "sgd"}, "updates": "gradients"}, True),
        ({"updates": "steps"}, False),
        ({"sync_every": 2}, False),
    ],
)
def test_downpour_sends_gradients_or_the_steps_of_its_workers(settings: dict[str, Any], gradients: bool) -> None:
    config = TrainConfig.model_validate({"strategy": "downpour", "workers": 2, "asynchronous": settings})
    assert make_rule(config).sends_gradients is gradients


def test_easgd_with_overlap_uses_the_weights_that_were_answered() -> None:
    """The pull towards the centre is that of the weights sent before, not of those sent now."""
    network = Network(strategy="easgd", asynchronous={"elasticity": 0.6, "overlap": True})
    central, workers, alpha = START.copy(), [START.copy(), START.copy()], 0.6 / 2
    sent: list[Array | None] = [None, None]
    answers = [START, START]
    for step in range(2 * STEPS):
        k = step % 2
        network.take_local_step(k, 0.3)
        workers[k] = workers[k] - 0.3 * (workers[k] - TARGETS[k])
        network.exchange_with_overlap(k)
        before, now = sent[k], workers[k].copy()
        if before is not None:
            workers[k] = workers[k] - alpha * (before - answers[k])
        central, sent[k] = central + alpha * (now - central), now
        answers[k] = central.copy()
        assert_close(network.master.values, central)
        assert_close(network.weights(k), workers[k])


def test_downpour_with_overlap_applies_every_difference_once() -> None:
    """The answer does not contain the difference that is on its way: the worker adds it."""
    network = Network(strategy="downpour", asynchronous={"sync_every": 2, "overlap": True})
    central, workers, moved = START.copy(), [START.copy(), START.copy()], np.zeros(SIZE)
    answers: list[Array | None] = [None, None]
    for step in range(2 * STEPS):
        k = step % 2
        base = workers[k].copy()
        for _ in range(2):
            network.take_local_step(k, 0.3)
            workers[k] = workers[k] - 0.3 * (workers[k] - TARGETS[k])
        network.exchange_with_overlap(k)
        difference = base - workers[k]
        answer = answers[k]
        if answer is not None:
            workers[k] = answer - difference
        central, moved = central - difference, moved - difference
        answers[k] = central.copy()
        assert_close(network.master.values, central)
        assert_close(network.weights(k), workers[k])
    assert_close(network.master.values, START + moved)


def test_gem_scales_steps_to_the_energy_of_one_worker_with_momentum() -> None:
    network = Network(strategy="gem", asynchronous={"momentum": 0.9, "kappa": 2.0})
    central, workers = START.copy(), [START.copy(), START.copy()]
    momenta, last = [np.zeros(SIZE), np.zeros(SIZE)], [START.copy(), START.copy()]
    for step in range(STEPS):
        k = step % 2
        network.take_local_step(k, 0.3)
        delta = -0.3 * (workers[k] - TARGETS[k])
        network.exchange(k)
        momenta[k] = 0.9 * momenta[k] + delta
        pi = np.clip((2.0 * np.abs(momenta[k]) - np.abs(central - last[k])) / np.abs(delta + 1e-12), 0, 5)
        last[k] = central.copy()
        workers[k] = central + pi * delta
        central = central + pi * delta
        assert_close(network.master.values, central)
        assert_close(network.weights(k), workers[k])


def test_diloco_takes_an_outer_nesterov_step_on_the_mean_difference() -> None:
    network = Network(strategy="diloco")
    central, velocity = START.copy(), np.zeros(SIZE)
    for _ in range(STEPS):
        differences = []
        for k in range(2):
            network.sides[k].start(network.master.values.clone())
            worker = central.copy()
            for _ in range(3):
                network.take_local_step(k, 0.3)
                worker = worker - 0.3 * (worker - TARGETS[k])
            differences.append(central - worker)
        network.master.apply_mean([network.update(k) for k in range(2)], [3.0, 3.0])
        pseudo_gradient = np.mean(differences, axis=0)
        velocity = 0.9 * velocity + pseudo_gradient
        central = central - 0.7 * (pseudo_gradient + 0.9 * velocity)
        assert_close(network.master.values, central)


def test_backup_averages_the_gradients_of_a_quorum() -> None:
    optimizer = {"name": "sgd", "lr": 0.1, "lr_rule": "none"}
    network = Network(strategy="backup", optimizer=optimizer, asynchronous={"quorum": 0.95})
    central = START.copy()
    for _ in range(STEPS):
        for k in range(2):
            network.sides[k].start(network.master.values.clone())
            network.set_gradient(k)
        network.master.apply_mean([network.update(k) for k in range(2)], [1.0, 1.0])
        central = central - 0.1 * np.mean([central - TARGETS[k] for k in range(2)], axis=0)
        assert_close(network.master.values, central)
    rule = make_rule(network.config)
    assert [rule.round_size(workers) for workers in (1, 2, 19, 20, 40)] == [1, 2, 19, 19, 38]
    assert rule.refuses_stale


@pytest.mark.parametrize("workers", [1, 4])
def test_rules_that_average_scale_the_learning_rate_with_the_workers(workers: int) -> None:
    config = TrainConfig.model_validate({"strategy": "backup", "workers": workers, "optimizer": {"name": "sgd"}})
    master = MasterWeights(torch.zeros(2), 2, config)
    assert master.optimizer.param_groups[0]["lr"] == pytest.approx(1e-3 * workers)


def test_the_table_of_rules_is_the_table_of_asynchronous_strategies() -> None:
    assert [name for name, traits in STRATEGIES.items() if traits.asynchronous] == list(RULES)
    assert all(issubclass(rule_class(name), Rule) for name in RULES)


def test_settings_of_all_rules_are_checked_without_torch() -> None:
    script = (
        "import sys; from clew.training.asynchronous.rules import RULES; from clew.training.config import TrainConfig\n"
        "for name in RULES: TrainConfig(strategy=name)\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
