"""The contract of every transport."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from clew.core.private_files import remove_dead_sockets
from clew.errors import ConfigError, LostPeerError
from clew.training.asynchronous.messaging import Message, MessageTransport
from clew.training.asynchronous.messaging.join_token import JoinToken
from clew.training.asynchronous.messaging.tcp import TcpClient, TcpServer, TcpServerAndClient
from tests.training.asynchronous.messaging.in_process import in_process_transports

pytestmark = pytest.mark.timeout(60)


def tcp_pair(*, encrypted: bool = False) -> tuple[MessageTransport, MessageTransport]:
    token = JoinToken.new()
    server, client = TcpServer(token=token), TcpClient()
    path = token.local_socket(int(server.address.rpartition(":")[2]))
    assert path is not None
    if encrypted:  # as from another host: there is no local socket
        path.unlink()
    client.connect(0, server.address, JoinToken.parse(str(token)))
    client.send(0, "hello")
    assert server.receive(5) is not None
    client.number = 1
    return server, client


def server_and_client_pair() -> tuple[MessageTransport, MessageTransport]:
    """A master that is reached, and one that reaches it and listens itself."""
    token = JoinToken.new()
    server, client = TcpServer(token=token), TcpClient(number=1)
    client.connect(0, server.address, token)
    joint = TcpServerAndClient(TcpServer(token=token, number=1), client)
    joint.send(0, "hello")
    assert server.receive(5) is not None
    return server, joint


PAIRS: dict[str, Callable[[], tuple[MessageTransport, MessageTransport]]] = {
    "in-process": lambda: tuple(in_process_transports(2)),  # type: ignore[dict-item, return-value]
    "tcp": tcp_pair,
    "tcp, encrypted": lambda: tcp_pair(encrypted=True),
    "tcp, both": server_and_client_pair,
}


@pytest.fixture(params=PAIRS)
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[MessageTransport, MessageTransport]]:
    transports = PAIRS[request.param]()
    yield transports
    for transport in reversed(transports):
        transport.close()


def receive(transport: MessageTransport) -> Message:
    message = transport.receive(30)
    assert message is not None
    return message


def check_contract(one: MessageTransport, other: MessageTransport) -> None:
    """Check order, types, answers and counts. `one` has number 0, `other` number 1."""
    sent = [torch.arange(5.0), torch.arange(3.0, dtype=torch.float64), torch.ones(7).bfloat16()]
    for number, tensor in enumerate(sent):
        other.send(0, "push", {"number": number, "text": "ü"}, tensor)
    for number, tensor in enumerate(sent):
        message = receive(one)
        assert (message.peer, message.kind, message.fields) == (1, "push", {"number": number, "text": "ü"})
        assert message.tensor is not None and message.tensor.dtype == tensor.dtype
        assert torch.equal(message.tensor, tensor)
    one.send(1, "status", {"list": [[1, 2]]})
    assert receive(other) == Message(0, "status", {"list": [[1, 2]]}, None)
    assert other.bytes == one.bytes == 5 * 4 + 3 * 8 + 7 * 2


def test_messages_arrive_complete_in_order_and_are_counted(pair: tuple[MessageTransport, MessageTransport]) -> None:
    check_contract(*pair)
    assert pair[1].sent - pair[0].received == 0 or pair[1].sent - pair[0].received == 1  # the hello was received before


def test_a_tensor_may_be_changed_once_it_is_sent(pair: tuple[MessageTransport, MessageTransport]) -> None:
    one, other = pair
    tensor = torch.zeros(500_000)
    other.send(0, "push", {}, tensor)
    tensor.fill_(1.0)
    received = receive(one).tensor
    assert received is not None and not received.any()


def test_receive_returns_none_after_its_timeout(pair: tuple[MessageTransport, MessageTransport]) -> None:
    started = time.monotonic()
    assert pair[0].receive(0.05) is None
    assert pair[0].receive(0) is None
    assert time.monotonic() - started < 5


def test_an_unknown_peer_is_an_error(pair: tuple[MessageTransport, MessageTransport]) -> None:
    with pytest.raises(LostPeerError, match="no peer 9"):
        pair[0].send(9, "status")


def test_large_tensors_in_both_directions(pair: tuple[MessageTransport, MessageTransport]) -> None:
    one, other = pair

    def echo() -> None:
        for _ in range(5):
            message = receive(one)
            one.send(1, "back", message.fields, message.tensor)

    thread = threading.Thread(target=echo)
    thread.start()
    for number in range(5):
        other.send(0, "push", {"n": number}, torch.full((1_000_000,), float(number)), stable=True)
        message = receive(other)
        assert message.fields["n"] == number
        assert message.tensor is not None and message.tensor[-1] == number
    thread.join()


def test_mpi_fulfils_the_contract() -> None:
    script = Path(__file__).parent / "mpi_pair.py"
    done = subprocess.run(
        [str(Path(sys.executable).parent / "mpiexec"), "-n", "2", sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=50,
        cwd=Path(__file__).parents[4],
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("contract fulfilled") == 2


@pytest.mark.parametrize("sender", ["server", "client"])
def test_messages_of_a_process_that_exits_after_close_arrive(sender: str, tmp_path: Path) -> None:
    """The last message of a coordinator ends the other masters: one that is lost leaves them waiting for ever."""
    token, count = JoinToken.new(), 20
    (tmp_path / "send.py").write_text(
        "import os, sys, torch\n"
        "from clew.training.asynchronous.messaging.join_token import JoinToken\n"
        "from clew.training.asynchronous.messaging.tcp import TcpClient, TcpServer\n"
        f"token = JoinToken{(token.public_key, token.worker_key, token.private_key)!r}\n"
        "if sys.argv[1] == 'server':\n"
        "    transport, peer = TcpServer(token=token), 1\n"
        "    print(transport.address, flush=True)\n"
        "    transport.receive(30)\n"
        "else:\n"
        "    transport, peer = TcpClient(number=1), 0\n"
        "    transport.connect(0, sys.argv[2], token)\n"
        "    transport.send(0, 'hello')\n"
        f"for _ in range({count}):\n"
        "    transport.send(peer, 'push', {}, torch.zeros(1 << 18))\n"
        "transport.close()\n"
        "os._exit(0)\n"
    )
    server = TcpServer(token=token)
    command = [sys.executable, str(tmp_path / "send.py"), sender, server.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        receiver: MessageTransport = server
        if sender == "server":
            assert process.stdout is not None
            receiver = client = TcpClient(number=1)
            client.connect(0, process.stdout.readline().strip(), token)
            client.send(0, "hello")
        else:
            assert receive(server).kind == "hello"
        for _ in range(count):
            assert receive(receiver).kind == "push"
        receiver.close()
    server.close()


def test_a_port_in_use_is_refused() -> None:
    server = TcpServer(token=JoinToken.new())
    with pytest.raises(ConfigError, match=r"cannot listen on 127\.0\.0\.1:\d+ .*choose another"):
        TcpServer(server.address, token=JoinToken.new())
    server.close()


@pytest.mark.slow
def test_a_restarted_server_is_noticed() -> None:
    token = JoinToken.new()
    first = TcpServer(token=token)
    client = TcpClient(number=3)
    client.connect(0, first.address, token)
    client.start_heartbeat(first.address, token)
    serve(first, 0.5)
    first.close()
    second = restart(first.address, token)
    serve(second, 2.5)
    with pytest.raises(LostPeerError, match="restarted"):
        client.receive(5)
    client.close()
    second.close()


def restart(address: str, token: JoinToken) -> TcpServer:
    """Start a server at an address that another has just left; ZeroMQ closes it a little later."""
    for _ in range(100):
        with contextlib.suppress(ConfigError):
            return TcpServer(address, token=token)
        time.sleep(0.05)
    raise AssertionError(f"{address} stays in use")


def serve(server: TcpServer, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        server.receive(0.05)


@pytest.mark.slow
def test_heartbeats_arrive_without_other_messages() -> None:
    token = JoinToken.new()
    server, client = TcpServer(token=token), TcpClient(number=4)
    client.connect(0, server.address, token)
    client.send(0, "hello")
    receive(server)
    client.start_heartbeat(server.address, token)
    before = server.last_heartbeat[4]
    serve(server, 1.5)
    assert server.last_heartbeat[4] > before
    assert client.silence < 1.5
    client.close()
    server.close()


def test_the_socket_of_a_server_goes_with_it_and_those_of_killed_ones_are_removed(tmp_path: Path) -> None:
    token = JoinToken.new()
    server = TcpServer(token=token)
    path = token.local_socket(int(server.address.rpartition(":")[2]))
    assert path is not None and path.is_socket()
    server.close()
    assert not path.exists()
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as dead:
        listening.bind(str(tmp_path / "listening"))
        listening.listen()
        dead.bind(str(tmp_path / "dead"))
        (tmp_path / "file").touch()
        remove_dead_sockets(tmp_path)
        assert (tmp_path / "dead").exists()  # it is young
        remove_dead_sockets(tmp_path, seconds=-1)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "listening"]
