"""The wire of asynchronous training: peers without the keys of the token, and bytes that are no messages."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import zmq

from clew.errors import ConfigError, LostPeerError
from clew.training.asynchronous.messaging.frames import message_limit
from clew.training.asynchronous.messaging.join_token import JoinToken, load_or_make_token, read_token
from clew.training.asynchronous.messaging.tcp import TcpClient, TcpServer
from clew.training.asynchronous.messaging.transport import pack_header

pytestmark = pytest.mark.timeout(120)
HELLO = pack_header("hello", {"number": None, "token": "clew_guess"}, None)
DEEP = b"[" * 100_000 + b"]" * 100_000
BAD_FRAMES = [
    [],
    [b""],
    [b"\xff\xfe\x00"],
    [b"null"],
    [b"7"],
    [b'{"kind": "hello"}'],
    [b'["hello"]'],
    [b'["hello", [], null, null]'],
    [b"[1, {}, null, null]"],
    [b'["push", {}, ["complex1024", 3], null]', b"123"],
    [b'["push", {}, ["float32", -1], null]', b""],
    [b'["push", {}, ["float32", "4"], null]', b"1234"],
    [b'["push", {}, ["float32", 1e99], null]', b"1234"],
    [b'["push", {}, 5, null]', b"1234"],
    [b'["push", {}, [[], 3], null]', b"1234"],
    [b'["push", {}, ["float32", 100], null]', b"1234"],
    [b'["hello", {"number": "one"}, null, null]'],
    [b'["hello", {"number": -5}, null, null]'],
    [b'["heartbeat", {"number": [1]}, null, null]'],
    [b'["heartbeat", {"number": 1e999}, null, null]'],
    [b'["hello", ' + DEEP + b", null, null]"],
]


@pytest.fixture
def token() -> JoinToken:
    return JoinToken.new()


@pytest.fixture
def server(token: JoinToken) -> Iterator[TcpServer]:
    result = TcpServer(token=token, max_bytes=message_limit(1000))
    yield result
    result.close()


@pytest.fixture
def worker(server: TcpServer, token: JoinToken) -> Iterator[TcpClient]:
    """A worker that has joined."""
    client = TcpClient()
    client.connect(0, server.address, JoinToken.parse(str(token)))
    client.send(0, "hello")
    message = server.receive(10)
    assert message is not None and message.kind == "hello"
    yield client
    client.close()


def _dealer(address: str, keys: JoinToken | None) -> zmq.Socket[bytes]:
    dealer: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
    dealer.setsockopt(zmq.LINGER, 0)
    if keys is not None:
        keys.secure_client(dealer)
    dealer.connect(f"tcp://{address}")
    return dealer


@pytest.mark.slow
@pytest.mark.parametrize("keys", ["none", "own", "the right master, another worker"])
def test_a_peer_without_the_keys_is_not_heard(
    keys: str, server: TcpServer, token: JoinToken, worker: TcpClient
) -> None:
    other = JoinToken.new()
    used = {"none": None, "own": other}.get(keys, JoinToken(token.public_key, other.worker_key))
    with _dealer(server.address, used) as dealer:
        for frames in [[HELLO], *BAD_FRAMES[1:], [pack_header("push", {}, torch.ones(5)), bytes(20)]]:
            with contextlib.suppress(zmq.Again):  # ZeroMQ takes no more messages once the peer was refused
                dealer.send_multipart(frames, zmq.NOBLOCK)
        assert server.receive(1.0) is None
        assert not dealer.poll(0), "the master answered"
    assert not server.refusals, "bytes of an unknown peer were read"
    worker.send(0, "push", {}, torch.ones(5))
    message = server.receive(10)
    assert message is not None and message.kind == "push"


@pytest.mark.parametrize("frames", BAD_FRAMES, ids=lambda frames: repr(b"|".join(frames)[:40]))
def test_frames_that_are_no_message_do_not_end_the_training(
    frames: list[bytes], server: TcpServer, token: JoinToken, worker: TcpClient
) -> None:
    with _dealer(server.address, token) as dealer:
        dealer.send_multipart(frames or [b""])
        dealer.send_multipart([pack_header("hello", {}, None)])
        message = server.receive(10)
    assert message is not None and message.kind == "hello"
    assert len(server.refusals) == 1 and "invalid message" in server.refusals[0]


def test_refusals_do_not_fill_the_memory(server: TcpServer, token: JoinToken) -> None:
    with _dealer(server.address, token) as dealer:
        for _ in range(1000):
            dealer.send(b"rubbish")
        dealer.send(pack_header("hello", {}, None))
        assert server.receive(20) is not None
    assert 0 < len(server.refusals) <= 100


@pytest.mark.slow
def test_a_message_that_is_too_large_is_not_received(server: TcpServer, token: JoinToken, worker: TcpClient) -> None:
    with _dealer(server.address, token) as dealer:
        dealer.send_multipart([pack_header("hello", {}, None)])
        assert server.receive(10) is not None
        dealer.send_multipart([b'["push", {}, null, null]', bytes(message_limit(1000) + 1000)])
        assert server.receive(2.0) is None
    worker.send(0, "push", {}, torch.ones(5))
    message = server.receive(10)
    assert message is not None and message.kind == "push"


class _Impostor(threading.Thread):
    """Listens at the port of a master that has died, and hands out a recipe to whoever says hello."""

    def __init__(self, address: str, marker: Path) -> None:
        super().__init__(daemon=True)
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.router = self.context.socket(zmq.ROUTER)
        self.address, self.received, self._ended = address, list[bytes](), threading.Event()
        code = f"import pathlib; pathlib.Path({str(marker)!r}).touch()"
        recipe = marker.with_name("evil.py")
        recipe.write_text(code)
        document = {"recipe": str(recipe), "train": {"dataset": "/nowhere"}}
        self.welcome = pack_header("welcome", {"number": 1, "document": document}, None)
        for _ in range(200):
            try:
                self.router.bind(f"tcp://{address}")
                break
            except zmq.ZMQError:
                time.sleep(0.05)

    def run(self) -> None:
        while not self._ended.is_set():
            if self.router.poll(50):
                identity, *frames = self.router.recv_multipart()
                self.received += frames
                self.router.send_multipart([identity, self.welcome])

    def end(self) -> None:
        self._ended.set()
        self.join()
        self.router.close(0)
        self.context.term()


def test_a_worker_takes_no_recipe_from_the_port_of_a_dead_master(token: JoinToken, tmp_path: Path) -> None:
    first = TcpServer(token=token)
    address = first.address
    first.close()
    impostor = _Impostor(address, tmp_path / "executed")
    impostor.start()
    (tmp_path / "token").write_text(f"{token}\n")
    command = [sys.executable, "-c", "from clew.cli.main import run; run()", "worker", address]
    done = subprocess.run(
        [*command, "--token-file", str(tmp_path / "token"), "--patience", "6s"],
        env={**os.environ, "CLEW_TOKEN": "clew_secret_of_the_service"},
        text=True,
        capture_output=True,
        timeout=100,
    )
    impostor.end()
    assert done.returncode == 2 and "answered in 6 s" in done.stderr, done.stdout + done.stderr
    assert not (tmp_path / "executed").exists()
    sent = b"".join(impostor.received)
    assert b"secret" not in sent and token.worker_key.encode() not in sent and b"hello" not in sent


def _listen_without_keys() -> tuple[str, threading.Event]:
    """A process without keys at some port: it greets as a ZeroMQ peer and hangs up, until the event is set."""
    listener, ended = socket.create_server(("127.0.0.1", 0)), threading.Event()
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)

    def answer() -> None:
        with listener:
            while not ended.is_set():
                if select.select([listener], [], [], 0.05)[0]:
                    with listener.accept()[0] as peer:
                        peer.sendall(greeting)
                        time.sleep(0.01)

    threading.Thread(target=answer, daemon=True).start()
    return f"127.0.0.1:{listener.getsockname()[1]}", ended


def test_nothing_is_sent_for_ever_to_a_process_without_the_keys(token: JoinToken) -> None:
    address, ended = _listen_without_keys()
    lost = 0
    for _ in range(14):  # ZeroMQ drops the connection in about every second
        with contextlib.closing(TcpClient()) as client:
            client.connect(0, address, token)
            client.send(0, "hello")
            while not client.is_refused(0):
                time.sleep(0.001)
            time.sleep(0.05)
            client.send(0, "hello")
            try:
                client.send(0, "push", {}, torch.ones(3))
            except LostPeerError:
                lost += 1
            client.connect(0, address, token)  # without messages that wait
    ended.set()
    assert lost > 0


@pytest.mark.slow
def test_a_worker_joins_the_true_master_after_an_impostor(token: JoinToken, tmp_path: Path) -> None:
    first = TcpServer(token=token)
    address = first.address
    first.close()
    impostor = _Impostor(address, tmp_path / "executed")
    impostor.start()
    client = TcpClient()
    client.connect(0, address, token)
    client.send(0, "hello")
    assert client.receive(2) is None and client.is_refused(0)
    impostor.end()
    master = TcpServer(address, token=token)
    client.connect(0, address, token)
    client.send(0, "hello")
    message = master.receive(10)
    assert message is not None and message.kind == "hello"
    client.close()
    master.close()


def test_the_local_socket_is_closed_to_other_users(server: TcpServer, token: JoinToken) -> None:
    path = token.local_socket(int(server.address.rpartition(":")[2]))
    assert path is not None and path.is_socket()
    facts = path.parent.stat()
    assert facts.st_mode & 0o777 == 0o700 and facts.st_uid == os.getuid()


def test_tokens_of_services_and_trainings_are_not_confused(tmp_path: Path) -> None:
    for text, reason in [("clew_abc", "a token of a server"), ("guess", "no token of a training"), ("", "no token")]:
        with pytest.raises(ConfigError, match=reason):
            JoinToken.parse(text)
    token = load_or_make_token(tmp_path / "token")
    assert load_or_make_token(tmp_path / "token") == token == read_token(tmp_path / "token")
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
    assert token.private_key and token.private_key not in str(token) + repr(token)
    assert token.worker_key not in repr(token)


def test_a_service_gets_no_token_of_a_training(token: JoinToken) -> None:
    from clew import Client

    with pytest.raises(ConfigError, match="token of a training"):
        Client("http://127.0.0.1:9", str(token))
