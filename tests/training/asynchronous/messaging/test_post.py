"""What every post promises."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import zmq

from clew.errors import ConfigError, LostPeerError
from clew.training.asynchronous.messaging import Message, Post, inprocess
from clew.training.asynchronous.messaging.tcp import Client, Joint, Server, Token, is_local
from clew.training.asynchronous.messaging.transport import pack

pytestmark = pytest.mark.timeout(60)


def tcp_pair(*, encrypted: bool = False) -> tuple[Post, Post]:
    token = Token.new(encrypted=encrypted)
    server, client = Server(token=token), Client()
    client.connect(0, server.address, Token.parse(str(token)))
    client.send(0, "hello")
    assert server.receive(5) is not None
    client.here = 1
    return server, client


def joint_pair() -> tuple[Post, Post]:
    """A master that is reached, and one that reaches it and listens itself."""
    token = Token.new(encrypted=False)
    server, client = Server(token=token), Client(here=1)
    client.connect(0, server.address, token)
    joint = Joint(Server(token=token, here=1), client)
    joint.send(0, "hello")
    assert server.receive(5) is not None
    return server, joint


PAIRS: dict[str, Callable[[], tuple[Post, Post]]] = {
    "in-process": lambda: tuple(inprocess.posts(2)),  # type: ignore[dict-item, return-value]
    "tcp": tcp_pair,
    "tcp, encrypted": lambda: tcp_pair(encrypted=True),
    "tcp, joint": joint_pair,
}


@pytest.fixture(params=PAIRS)
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Post, Post]]:
    posts = PAIRS[request.param]()
    yield posts
    for post in reversed(posts):
        post.close()


def got(post: Post) -> Message:
    message = post.receive(5)
    assert message is not None
    return message


def contract(one: Post, other: Post) -> None:
    """Order, types, answers, counts; `one` is number 0, `other` number 1."""
    sent = [torch.arange(5.0), torch.arange(3.0, dtype=torch.float64), torch.ones(7).bfloat16()]
    for number, tensor in enumerate(sent):
        other.send(0, "push", {"number": number, "text": "ü"}, tensor)
    for number, tensor in enumerate(sent):
        message = got(one)
        assert (message.peer, message.kind, message.facts) == (1, "push", {"number": number, "text": "ü"})
        assert message.tensor is not None and message.tensor.dtype == tensor.dtype
        assert torch.equal(message.tensor, tensor)
    one.send(1, "told", {"list": [[1, 2]]})
    assert got(other) == Message(0, "told", {"list": [[1, 2]]}, None)
    assert other.bytes == one.bytes == 5 * 4 + 3 * 8 + 7 * 2


def test_messages_come_whole_in_order_and_are_counted(pair: tuple[Post, Post]) -> None:
    contract(*pair)
    assert pair[1].sent - pair[0].received == 0 or pair[1].sent - pair[0].received == 1  # a hello was read before


def test_a_tensor_may_be_changed_once_it_is_sent(pair: tuple[Post, Post]) -> None:
    one, other = pair
    tensor = torch.zeros(500_000)
    other.send(0, "push", {}, tensor)
    tensor.fill_(1.0)
    found = got(one).tensor
    assert found is not None and not found.any()


def test_nothing_comes_in_time(pair: tuple[Post, Post]) -> None:
    begun = time.monotonic()
    assert pair[0].receive(0.05) is None
    assert pair[0].receive(0) is None
    assert time.monotonic() - begun < 5


def test_there_is_nobody_of_that_number(pair: tuple[Post, Post]) -> None:
    with pytest.raises(LostPeerError, match="no peer 9"):
        pair[0].send(9, "told")


def test_large_tensors_both_ways_at_once(pair: tuple[Post, Post]) -> None:
    one, other = pair

    def echo() -> None:
        for _ in range(5):
            message = got(one)
            one.send(1, "back", message.facts, message.tensor)

    thread = threading.Thread(target=echo)
    thread.start()
    for number in range(5):
        other.send(0, "push", {"n": number}, torch.full((1_000_000,), float(number)), lent=True)
        message = got(other)
        assert message.facts["n"] == number
        assert message.tensor is not None and message.tensor[-1] == number
    thread.join()


def test_the_same_over_mpi() -> None:
    script = Path(__file__).parent / "mpi_pair.py"
    done = subprocess.run(
        [str(Path(sys.executable).parent / "mpiexec"), "-n", "2", sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=50,
        cwd=Path(__file__).parents[4],
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("all is well") == 2


def test_a_wrong_token_is_refused() -> None:
    server, client = Server(token=Token.new(encrypted=False)), Client()
    client.connect(0, server.address, Token("guess"))
    client.send(0, "hello")
    assert server.receive(0.5) is None
    message = got(client)
    assert (message.kind, message.facts["why"]) == ("refused", "the token is wrong")
    client.send(0, "push", {}, torch.ones(3))
    assert server.receive(0.5) is None
    with pytest.raises(LostPeerError, match="does not know"):
        client.receive(5)
    server.close()
    client.close()


def test_a_wrong_key_gets_nowhere() -> None:
    server, client = Server(token=Token.new(encrypted=True)), Client()
    client.connect(0, server.address, Token("guess", Token.new(encrypted=True).public))
    client.send(0, "hello")
    assert server.receive(0.5) is None
    server.close()
    client.close()


def test_a_message_cut_in_the_middle_is_refused() -> None:
    token = Token.new(encrypted=False)
    server = Server(token=token)
    line: zmq.Socket[bytes]
    with zmq.Context.instance().socket(zmq.DEALER) as line:
        line.setsockopt(zmq.LINGER, 0)
        line.connect(f"tcp://{server.address}")
        line.send_multipart([pack("hello", {"token": token.word}, None)])
        assert got(server).kind == "hello"
        line.send_multipart([pack("push", {}, torch.ones(5)), b"1234567"])
        line.send_multipart([b"\x00rubbish"])
        assert server.receive(0.5) is None
        assert "cut" in server.refused[0] and len(server.refused) == 2
    server.close()


def test_a_port_in_use_is_told() -> None:
    server = Server(token=Token.new(encrypted=False))
    with pytest.raises(ConfigError, match=r"cannot listen on 127\.0\.0\.1:\d+ .*choose another"):
        Server(server.address, token=Token.new(encrypted=False))
    server.close()


def test_a_server_started_anew_is_noticed() -> None:
    token = Token.new(encrypted=False)
    first = Server(token=token)
    client = Client(here=3)
    client.connect(0, first.address, token)
    client.watch(first.address, token)
    serve(first, 0.5)
    first.close()
    second = _again(first.address, token)
    serve(second, 2.5)
    with pytest.raises(LostPeerError, match="anew"):
        client.receive(5)
    client.close()
    second.close()


def _again(address: str, token: Token) -> Server:
    """A server at an address that another has just left: ZeroMQ closes behind one's back."""
    for _ in range(100):
        with contextlib.suppress(ConfigError):
            return Server(address, token=token)
        time.sleep(0.05)
    raise AssertionError(f"{address} stays in use")


def serve(server: Server, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        server.receive(0.05)


def test_signs_of_life_come_while_nothing_else_does() -> None:
    token = Token.new(encrypted=False)
    server, client = Server(token=token), Client(here=4)
    client.connect(0, server.address, token)
    client.send(0, "hello")
    got(server)
    client.watch(server.address, token)
    before = server.heard[4]
    serve(server, 1.5)
    assert server.heard[4] > before
    assert client.silence < 1.5
    client.close()
    server.close()


@pytest.mark.parametrize(("host", "local"), [("127.0.0.1", True), ("localhost", True), ("192.0.2.1", False)])
def test_only_this_machine_reaches_the_loopback(host: str, local: bool) -> None:
    assert is_local(host) is local
