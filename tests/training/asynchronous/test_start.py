"""How a training that workers join begins: who is waited for, and from when its time counts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import clew
from clew import Dataset
from clew.errors import ConfigError
from clew.training.asynchronous.master_links import Others
from clew.training.asynchronous.messaging import Message
from clew.training.asynchronous.roles import Direct
from clew.training.asynchronous.worker import Part
from tests.training import recipe
from tests.training.asynchronous.test_asynchronous import SETTINGS, check, data, train

__all__ = ["data"]
pytestmark = pytest.mark.timeout(120)
LISTEN = {"listen": "127.0.0.1:0"}


def test_nobody_begins_before_those_that_are_waited_for_are_there(data: Dataset, tmp_path: Path) -> None:
    run = train(data, tmp_path, strategy="downpour", central={**LISTEN, "wait_for": 2})
    told = check(run, data)
    joined = [record for record in run.records(kind="note") if "joined" in record]
    first = next(run.records(kind="step"))
    assert sorted(record["joined"] for record in joined) == [1, 2] and first["seq"] > joined[1]["seq"]
    # what the master waited before anybody was there is no time of training
    assert first["time"] - first["seconds"] > joined[0]["time"] - 0.05
    for worker in told["workers"].values():
        assert worker["communicate"] + worker["wait"] <= worker["seconds"]


def test_masters_may_say_hello_in_any_order() -> None:
    post = Direct(0)
    sent: list[Message] = []
    post.deliver = sent.append
    post.box.extend(Message(peer, "hello", {}) for peer in (2, 3, 1))
    others = Others(post, [Part(1, 3, 6), Part(2, 6, 9)])
    others.begin(torch.zeros(9))
    assert [message.kind for message in sent] == ["begin", "begin"]
    assert [message.peer for message in others.later] == [3]


def test_only_a_master_that_listens_can_wait(data: Dataset, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"central\.wait_for .* central\.listen"):
        clew.train(recipe("chain"), data, output=tmp_path / "run", strategy="gem", central={"wait_for": 2}, **SETTINGS)
