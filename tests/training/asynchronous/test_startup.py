"""The start of a training that workers join: how many are waited for, and when the training time starts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import clew
from clew import Dataset
from clew.errors import ConfigError
from clew.training.asynchronous.layout import WeightSlice
from clew.training.asynchronous.master_links import MasterLinks
from clew.training.asynchronous.messaging import Message
from clew.training.asynchronous.messaging.direct import DirectTransport
from tests.training import recipe
from tests.training.asynchronous.test_asynchronous import SETTINGS, check, data, train

__all__ = ["data"]
pytestmark = pytest.mark.timeout(120)
LISTEN = {"listen": "127.0.0.1:0"}


def test_training_starts_only_when_enough_workers_have_joined(data: Dataset, tmp_path: Path) -> None:
    run = train(data, tmp_path, strategy="downpour", asynchronous={**LISTEN, "wait_for": 2})
    record = check(run, data)
    joined = [note for note in run.records(kind="note") if "joined" in note]
    first = next(run.records(kind="step"))
    assert sorted(note["joined"] for note in joined) == [1, 2] and first["seq"] > joined[1]["seq"]
    # the time before the first worker joined is not training time
    assert first["time"] - first["seconds"] > joined[0]["time"] - 0.05
    for worker in record["workers"].values():
        assert worker["communicate"] + worker["wait"] <= worker["seconds"]


def test_masters_may_connect_in_any_order() -> None:
    transport = DirectTransport(0)
    sent: list[Message] = []
    transport.deliver = sent.append
    transport.inbox.extend(Message(peer, "hello", {}) for peer in (2, 3, 1))
    links = MasterLinks(transport, [WeightSlice(1, 3, 6), WeightSlice(2, 6, 9)])
    links.begin(torch.zeros(9))
    assert [message.kind for message in sent] == ["begin", "begin"]
    assert [message.peer for message in links.later] == [3]


def test_wait_for_needs_listen(data: Dataset, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"asynchronous\.wait_for .* asynchronous\.listen"):
        clew.train(
            recipe("chain"), data, output=tmp_path / "run", strategy="gem", asynchronous={"wait_for": 2}, **SETTINGS
        )
