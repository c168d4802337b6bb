"""TrackNET: the published size and loss, states independent of the batch, extension compared with a plain search."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

from clew import Table
from clew.data.dataset.batch import to_batch
from clew.errors import DataError
from clew.recipes.tracking import TrackNet, tracknet
from clew.recipes.tracking.continuation import TrackLines, best_per_group
from clew.recipes.tracking.geometry import Detector
from clew.recipes.tracking.settings import TrackNetConfig
from tests.recipes.tracking import CYLINDERS, Hit, at, generated, to_table


def recipe(**tracks: Any) -> TrackNet:
    return TrackNet(TrackNetConfig.model_validate({"tracks": tracks}))


def net(work: TrackNet) -> tracknet.TrackNetwork:
    torch.manual_seed(0)
    return cast(tracknet.TrackNetwork, work.model())


def outputs(model: nn.Module, samples: Table) -> dict[str, np.ndarray]:
    with torch.no_grad():
        output = model.eval()(to_batch(samples, TrackNet.columns))
    return {name: value.double().numpy() for name, value in output.items()}


def test_the_published_network_has_its_number_of_parameters() -> None:
    parameters = TrackNet().optimizers(net(TrackNet()))
    assert sum(parameter.numel() for parameter in parameters["ellipse"]) == 10_020


def test_an_event_is_seen_the_same_in_any_company() -> None:
    samples, model = TrackNet().prepare(generated(5, seed=2)), net(recipe(threshold=0.4))
    together = outputs(model, samples)
    alone = [outputs(model, samples.slice(event, event + 1)) for event in range(5)]
    for name in ("ellipse", "residual", "logit"):
        np.testing.assert_allclose(together[name], np.concatenate([each[name] for each in alone]), atol=1e-4)
    assert len(together["length"]) == sum(len(each["length"]) for each in alone) > 0


def test_states_are_those_of_whole_sequences() -> None:
    samples, model = TrackNet().prepare(generated(3, seed=4)), net(TrackNet()).eval()
    batch = to_batch(samples, TrackNet.columns)
    lines = TrackLines(batch["place"], batch["station"].long(), 2 * math.pi)
    states = model.states(lines, batch["prefix"], batch["parent"], batch["level"])
    for prefix in (batch["level"] == 2).nonzero().squeeze(1)[:5].tolist():
        hits = [prefix]
        while int(batch["parent"][hits[0]]) != hits[0]:
            hits.insert(0, int(batch["parent"][hits[0]]))
        chain = batch["prefix"][hits]
        first = lines.line_features(None, chain[:1])
        features = torch.cat([first, lines.line_features(chain[:-1], chain[1:])]) * torch.tensor(model.shape.scales)
        _, state = model.gru(features.unsqueeze(1))
        torch.testing.assert_close(states[prefix], state[:, 0], rtol=0, atol=1e-5)


def test_hits_are_placed_against_the_straight_continuation_over_the_seam() -> None:
    track = [at(r, math.pi + 0.02 * (s - 1), 10.0 * s, s, track=0) for s, r in enumerate(CYLINDERS.radii)]
    off = outputs(net(TrackNet()), TrackNet().prepare(to_table([track])))["residual"]
    w = CYLINDERS.radii
    share = (w[2] - w[1]) / (w[1] - w[0])
    np.testing.assert_allclose(off, [[(0.02 - 0.02 * share) / 0.1, (10 - 10 * share) / 8]], atol=1e-4)


@pytest.mark.parametrize("alpha", [0.8, 0.01])
def test_the_loss_of_the_ellipse_is_the_published_one(alpha: float) -> None:
    samples = TrackNet().prepare(generated(3, seed=2)).join({"weight": [1.0, 2.0, -0.5]})
    batch, network_outputs = to_batch(samples, TrackNet.columns), outputs(net(TrackNet()), samples)
    expected, weights = 0.0, samples.weights[samples.ragged("step").events]
    for (x, y, r1, r2), (u, v), label, weight in zip(
        network_outputs["ellipse"],
        network_outputs["residual"],
        samples.ragged("step_label").values,
        weights,
        strict=True,
    ):
        distance = math.hypot((u - x) / r1, (v - y) / r2)
        expected += label * weight * (alpha * distance + (1 - alpha) * r1 * r2)
    tensors = {name: torch.from_numpy(value) for name, value in network_outputs.items()}
    loss = tracknet.ellipse_loss(tensors, batch, alpha)
    assert float(loss.total) == pytest.approx(expected, rel=1e-3)
    assert loss.weight == samples.ragged("step_label").values.sum()


def test_each_loss_moves_its_own_parameters_only() -> None:
    work = TrackNet()
    model, batch = net(work), to_batch(work.prepare(generated(3, seed=2)), TrackNet.columns)
    parameters_of = {name: list(parameters) for name, parameters in work.optimizers(model).items()}
    for name, other in (("ellipse", "ghosts"), ("ghosts", "ellipse")):
        model.zero_grad()
        dict(work.step(model, batch))[name].total.backward()  # type: ignore[no-untyped-call]
        assert all(parameter.grad is not None for parameter in parameters_of[name])
        assert all(parameter.grad is None for parameter in parameters_of[other])


def test_candidates_are_the_seeds_with_every_hit_in_their_ellipse() -> None:
    work = recipe(threshold=1e-9, widen=0.8, branches=1000)
    samples = work.prepare(generated(4, seed=6))
    network_outputs = outputs(net(work), samples)
    ellipse, off = network_outputs["ellipse"], network_outputs["residual"]
    inside = (((off - ellipse[:, :2]) / (0.8 * ellipse[:, 2:])) ** 2).sum(axis=1) <= 1
    step, two = samples.ragged("step"), samples.ragged("level").values == 1
    prefix = step.values + samples.ragged("prefix").offsets[step.events]
    hits = {
        (event, hit)
        for event, hit, good in zip(step.events, samples.ragged("step_hit").values, inside & two[prefix], strict=True)
        if good
    }
    length = network_outputs["length"].astype(int)
    ends = np.cumsum(length) - 1
    last_hits = {(int(network_outputs["member_event"][end]), int(network_outputs["members"][end])) for end in ends}
    assert set(length.tolist()) == {3}
    assert hits <= last_hits  # steps are searched in a box, candidates in an ellipse that may exceed it
    assert len(length) >= (inside & two[prefix]).sum()


def test_the_best_of_each_group_stay_in_their_order() -> None:
    group, score = torch.tensor([2, 0, 2, 0, 2, 1]), torch.tensor([0.1, 0.5, 0.9, 0.7, 0.9, 0.0])
    assert best_per_group(group, score, 1).tolist() == [2, 3, 5]
    assert best_per_group(group, score, 2).tolist() == [1, 2, 3, 4, 5]


@pytest.mark.slow
def test_untrained_candidates_do_not_multiply() -> None:
    settings = {"detector": {"name": "bmn"}, "tracks": {"threshold": 1e-9, "widen": 20.0, "beam": 50}}
    work = TrackNet(TrackNetConfig.model_validate(settings))
    event = [Hit(x, 0.02 * z, z, s, -1) for s, z in enumerate(Detector(name="bmn").planes) for x in range(-20, 20, 2)]
    network_outputs = outputs(net(work), work.prepare(to_table([event, event])))
    assert 0 < len(network_outputs["length"]) <= 2 * (50 * 7 + 20 * 20 * 6)
    assert network_outputs["length"].max() > 3


def test_an_explosion_of_candidates_is_one_line() -> None:
    work = TrackNet(TrackNetConfig.model_validate({"seeds": {"max_per_event": 100}, "tracks": {"widen": 1000.0}}))
    samples = TrackNet().prepare(generated(30, seed=6))
    with pytest.raises(DataError, match=r"more than 100 hits .* lower tracks\.widen"):
        outputs(net(work), samples)


def test_a_batch_without_steps_can_be_learned_from() -> None:
    work = TrackNet()
    batch = to_batch(work.prepare(to_table([[], [at(81.555, 0.1, 0.0, 0, 0)]])), TrackNet.columns)
    for loss in dict(work.step(net(work), batch)).values():
        assert float(loss.total.detach()) == loss.weight == 0
