"""Posts over TCP, by ZeroMQ: a master listens, workers come and go.

Whoever says hello must know the token. Where others than this machine can listen in, the key in it also encrypts
everything (CURVE). A worker's process gives a sign of life every second from a thread of its own, and gets one back:
each side knows when the other is gone, and a worker also when its master was started anew.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import ipaddress
import secrets
import socket
import threading
import time
import uuid
from dataclasses import dataclass
from typing import Any

import torch
import zmq
from torch import Tensor

from clew.errors import ConfigError, LostPeerError
from clew.training.asynchronous.messaging.transport import Facts, Message, Post, as_bytes, pack, unpack

BEAT = 1.0
"""Seconds between two signs of life."""
SILENCE = 5.0
"""Seconds without one after which a peer counts as gone."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Names of glibc's malloc.h."""
_LINGER = 2000


@dataclass(frozen=True)
class Token:
    """What a worker must know to join: a secret word and, where traffic is encrypted, the master's public key."""

    word: str
    public: str = ""
    secret: str = ""
    """The master's own part of the key; never leaves it."""

    @classmethod
    def new(cls, *, encrypted: bool) -> Token:
        public, secret = zmq.curve_keypair() if encrypted else (b"", b"")
        return cls(secrets.token_hex(16), public.hex(), secret.hex())

    @classmethod
    def parse(cls, text: str) -> Token:
        """From what `str` gave."""
        word, _, public = text.strip().partition("-")
        return cls(word, public)

    def __str__(self) -> str:
        return f"{self.word}-{self.public}" if self.public else self.word


def is_local(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return all(ipaddress.ip_address(found[4][0]).is_loopback for found in socket.getaddrinfo(host, None))
    except OSError:
        return False


class Server(Post):
    """Listens. Peers are numbered as they say hello, or as they ask to be."""

    def __init__(self, address: str = "127.0.0.1:0", *, token: Token, here: int = 0, first: int = 1) -> None:
        """`first`: the number of the first peer that does not ask for one.

        Raises:
            ConfigError: the address cannot be listened on.
        """
        super().__init__()
        self.here, self._token, self._next = here, token, first
        self.session = uuid.uuid4().hex
        keep_memory()
        self.line: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
        self.line.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.line.setsockopt(zmq.LINGER, _LINGER)
        if token.secret:
            self.line.setsockopt(zmq.CURVE_SERVER, 1)
            self.line.setsockopt(zmq.CURVE_SECRETKEY, bytes.fromhex(token.secret))
        host, _, port = address.rpartition(":")
        try:
            self.line.bind(f"tcp://{socket.gethostbyname(host)}:{int(port) or '*'}")
        except (zmq.ZMQError, OSError, ValueError) as error:
            self.line.close()
            raise ConfigError(f"cannot listen on {address} ({error}); choose another host:port") from error
        self.address = f"{host}:{self.line.getsockopt(zmq.LAST_ENDPOINT).decode().rpartition(':')[2]}"
        self._numbers: dict[bytes, int] = {}
        self._names: dict[int, bytes] = {}
        self.heard: dict[int, float] = {}
        """When each peer gave its last sign of life."""
        self.refused: list[str] = []
        """Why somebody was turned away."""

    def _post(self, peer: int, kind: str, facts: Facts, tensor: Tensor | None, *, lent: bool) -> None:
        if peer not in self._names:
            raise LostPeerError(f"there is no peer {peer}")
        try:
            _send(self.line, [self._names[peer]], pack(kind, facts, tensor), tensor, lent)
        except zmq.ZMQError as error:
            raise LostPeerError(f"peer {peer} cannot be reached ({error})") from error

    def receive(self, timeout: float | None = None) -> Message | None:
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if end is None else max(0, end - time.monotonic())
            if not self.line.poll(None if left is None else int(left * 1000)):
                return None
            message = self._sorted(self.line.recv_multipart(copy=False))
            if message is not None:
                self._count(message.tensor, out=False)
                return message

    def forget(self, peer: int) -> None:
        """Take no more from a peer; if it is there after all, it is told to say hello again."""
        self._numbers.pop(self._names.pop(peer, b""), None)
        self.heard.pop(peer, None)

    def close(self) -> None:
        self.line.close()

    def _sorted(self, frames: list[zmq.Frame]) -> Message | None:
        """A message for the caller, or None for what is dealt with here: signs of life, strangers, rubbish."""
        name = frames[0].bytes
        try:
            kind, facts, tensor = _read(frames[1:])
        except ValueError as error:
            self._turn_away(name, f"a message that makes no sense ({error})")
            return None
        if kind == "beat":
            self._answer_beat(name, int(facts["number"]))
            return None
        if kind == "hello":
            if not secrets.compare_digest(str(facts.pop("token", "")), self._token.word):
                self._turn_away(name, "the token is wrong")
                return None
            self._admit(name, facts.get("number"))
        number = self._numbers.get(name)
        if number is None:
            self._reply(name, "unknown", {})
            return None
        self.heard[number] = time.monotonic()
        return Message(number, kind, facts, tensor)

    def _admit(self, name: bytes, asked: int | None) -> None:
        number = self._numbers.get(name, asked)
        if number is None:
            number, self._next = self._next, self._next + 1
        self._numbers[name], self._names[number] = number, name

    def _answer_beat(self, name: bytes, number: int) -> None:
        if number in self._names:
            self.heard[number] = time.monotonic()
        self._reply(name, "beat", {"session": self.session})

    def _turn_away(self, name: bytes, why: str) -> None:
        self.refused.append(why)
        self._reply(name, "refused", {"why": why})

    def _reply(self, name: bytes, kind: str, facts: Facts) -> None:
        try:
            self.line.send_multipart([name, pack(kind, facts, None)])
        except zmq.ZMQError:  # it did not wait for the answer
            return


class Client(Post):
    """Reaches one or several servers, each by the number it goes by."""

    def __init__(self, *, here: int = -1) -> None:
        super().__init__()
        self.here = here
        keep_memory()
        self.lines: dict[int, zmq.Socket[bytes]] = {}
        self._numbers: dict[zmq.Socket[bytes], int] = {}
        self._words: dict[int, str] = {}
        self._poller = zmq.Poller()
        self._ready: list[zmq.Socket[bytes]] = []
        self._heart: _Heart | None = None
        self._patience = float("inf")

    def connect(self, peer: int, address: str, token: Token) -> None:
        """Make a server reachable; it need not be there yet."""
        made = _dealer(address, token)
        self.lines[peer], self._numbers[made], self._words[peer] = made, peer, token.word
        self._poller.register(made, zmq.POLLIN)

    def watch(self, address: str, token: Token, *, patience: float = 120.0) -> None:
        """Begin to give signs of life to this server, and to look for its own for `patience` seconds."""
        self._heart, self._patience = _Heart(address, token, self.here), patience

    @property
    def silence(self) -> float:
        """Seconds since the watched server was heard of."""
        return 0.0 if self._heart is None else time.monotonic() - self._heart.heard

    def _post(self, peer: int, kind: str, facts: Facts, tensor: Tensor | None, *, lent: bool) -> None:
        if peer not in self.lines:
            raise LostPeerError(f"there is no peer {peer}")
        told = {**facts, "token": self._words[peer], "number": self.here if self.here >= 0 else None}
        _send(self.lines[peer], [], pack(kind, told if kind == "hello" else facts, tensor), tensor, lent)

    def receive(self, timeout: float | None = None) -> Message | None:
        """As the contract says.

        Raises:
            LostPeerError: the watched server is gone, or was started anew and knows this peer no more.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while not self._ready:
            left = SILENCE if end is None else min(SILENCE, max(0.0, end - time.monotonic()))
            self._ready = [found for found, _ in self._poller.poll(int(left * 1000))]
            if self._heart is not None and self._heart.renewed:
                raise LostPeerError("the master was started anew")
            if self.silence > self._patience:
                raise LostPeerError(f"the master gave no sign of life for {self._patience:g} s")
            if not self._ready and end is not None and time.monotonic() >= end:
                return None
        found = self._ready.pop()
        kind, facts, tensor = _read(found.recv_multipart(copy=False))
        self._count(tensor, out=False)
        if kind == "unknown":
            raise LostPeerError("the master does not know this worker any more")
        return Message(self._numbers[found], kind, facts, tensor)

    def close(self) -> None:
        if self._heart is not None:
            self._heart.close()
        for each in self.lines.values():
            each.close()


class Joint(Post):
    """A process that listens and also reaches others: a master among masters."""

    def __init__(self, server: Server, client: Client) -> None:
        super().__init__()
        self.here, self._server, self._client = server.here, server, client
        self._poller = zmq.Poller()
        for each in (server.line, *client.lines.values()):
            self._poller.register(each, zmq.POLLIN)

    def _post(self, peer: int, kind: str, facts: Facts, tensor: Tensor | None, *, lent: bool) -> None:
        side: Post = self._client if peer in self._client.lines else self._server
        side.send(peer, kind, facts, tensor, lent=lent)

    def receive(self, timeout: float | None = None) -> Message | None:
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            for side in (self._client, self._server):
                message = side.receive(0)
                if message is not None:
                    self._count(message.tensor, out=False)
                    return message
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                return None
            self._poller.poll(None if left is None else int(left * 1000))

    def close(self) -> None:
        self._server.close()
        self._client.close()


class _Heart:
    """A thread that gives and takes signs of life, whatever else the process is busy with."""

    def __init__(self, address: str, token: Token, number: int) -> None:
        self.heard, self.renewed = time.monotonic(), False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, args=(address, token, number), name="heart", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _beat(self, address: str, token: Token, number: int) -> None:
        session = None
        with _dealer(address, token) as line:
            while not self._over.is_set():
                line.send(pack("beat", {"number": number}, None))
                if line.poll(int(BEAT * 1000)):
                    self.heard = time.monotonic()
                    told = unpack(line.recv()).facts.get("session")
                    self.renewed = self.renewed or session not in (None, told)
                    session = told
                    self._over.wait(BEAT)


@functools.cache
def keep_memory() -> None:
    """Let glibc keep what is freed: ZeroMQ asks for room for every tensor anew, and where the system has taken the room
    back in between, touching it again takes about as long as receiving what goes there."""
    with contextlib.suppress(OSError, AttributeError):
        tune = ctypes.CDLL(None).mallopt
        tune(_M_MMAP_THRESHOLD, 32 << 20)
        tune(_M_TRIM_THRESHOLD, 512 << 20)


def _dealer(address: str, token: Token) -> zmq.Socket[bytes]:
    made: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
    made.setsockopt(zmq.IDENTITY, uuid.uuid4().bytes)
    made.setsockopt(zmq.LINGER, _LINGER)
    made.setsockopt(zmq.RECONNECT_IVL, 100)
    made.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
    if token.public:
        public, secret = zmq.curve_keypair()
        made.setsockopt(zmq.CURVE_SERVERKEY, bytes.fromhex(token.public))
        made.setsockopt(zmq.CURVE_PUBLICKEY, public)
        made.setsockopt(zmq.CURVE_SECRETKEY, secret)
    host, _, port = address.rpartition(":")
    try:
        made.connect(f"tcp://{socket.gethostbyname(host)}:{int(port)}")
    except (zmq.ZMQError, OSError, ValueError) as error:
        made.close()
        raise ConfigError(f"cannot reach {address} ({error}); give the host:port that the master printed") from error
    return made


def _send(line: zmq.Socket[bytes], to: list[bytes], header: bytes, tensor: Tensor | None, lent: bool) -> None:
    frames: list[Any] = [*to, header]
    if tensor is None:
        line.send_multipart(frames)
        return
    line.send_multipart(frames, flags=zmq.SNDMORE)
    line.send(as_bytes(tensor), 0, copy=not lent)


def _read(frames: list[zmq.Frame]) -> tuple[str, dict[str, Any], Tensor | None]:
    """Raises ValueError for what is no message."""
    kind, facts, shape, _ = unpack(frames[0].bytes)
    if shape is None:
        return kind, facts, None
    dtype, count = shape
    if len(frames) < 2 or len(frames[1].buffer) != count * dtype.itemsize:
        raise ValueError("a tensor was cut")
    return kind, facts, torch.frombuffer(frames[1].buffer, dtype=dtype)
