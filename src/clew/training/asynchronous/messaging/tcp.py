"""A transport over TCP, with ZeroMQ: masters listen, workers connect and disconnect.

Both sides prove that they have the keys of the token before anything else is exchanged, and all messages are encrypted
(CURVE). Processes of the same user on one host use a Unix socket that only this user can reach, without encryption. A
thread of each client sends a heartbeat once per second and gets an answer. So each side notices when the other is gone,
and a worker also notices when its master was restarted.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import socket
import threading
import time
import uuid
from collections import deque
from pathlib import Path

import zmq
from torch import Tensor

from clew.core.private_files import remove_dead_sockets
from clew.errors import ConfigError, LostPeerError
from clew.training.asynchronous.messaging.frames import MAX_BYTES, parse_frames, requested_number, send_frames
from clew.training.asynchronous.messaging.join_token import JoinToken, is_listening
from clew.training.asynchronous.messaging.transport import (
    Fields,
    Message,
    MessageTransport,
    pack_header,
    unpack_header,
)

HEARTBEAT_INTERVAL = 1.0
"""Seconds between two heartbeats."""
HEARTBEAT_TIMEOUT = 5.0
"""Seconds without a heartbeat after which a peer counts as gone."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Constants of glibc's malloc.h."""
_LINGER_MS = 2000
_SEND_MS = 500
"""How long a send waits before it checks whether the server refused this client."""
_HANDSHAKE_FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)
_MAX_REFUSALS = 100


class TcpServer(MessageTransport):
    """Listens for clients. Clients are numbered in the order in which they connect, or choose their number."""

    def __init__(
        self,
        address: str = "127.0.0.1:0",
        *,
        token: JoinToken,
        number: int = 0,
        first_client: int = 1,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        """Listen on an address.

        Args:
            address: `host:port`; port 0 chooses a free one, see `address`.
            token: The keys, with the private key of the masters.
            number: The number of this process.
            first_client: The number of the first client that does not choose one.
            max_bytes: The largest part of a message; a client that sends more is disconnected. See `message_limit`.

        Raises:
            ConfigError: The address cannot be listened on.
        """
        super().__init__()
        self.number, self._next_client = number, first_client
        self.session = uuid.uuid4().hex
        keep_freed_memory()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.router: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        self.router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.router.setsockopt(zmq.LINGER, _LINGER_MS)
        self.router.setsockopt(zmq.MAXMSGSIZE, max_bytes)
        self._authenticator = token.secure_server(self.router)
        self._local: Path | None = None
        host, _, port = address.rpartition(":")
        try:
            self.router.bind(f"tcp://{socket.gethostbyname(host)}:{int(port) or '*'}")
        except (zmq.ZMQError, OSError, ValueError) as error:
            self.close()
            raise ConfigError(f"cannot listen on {address} ({error}); choose another host:port") from error
        self.address = f"{host}:{self.router.get_string(zmq.LAST_ENDPOINT).rpartition(':')[2]}"
        self._bind_local(token)
        self._numbers: dict[bytes, int] = {}
        self._identities: dict[int, bytes] = {}
        self.refusals: deque[str] = deque(maxlen=_MAX_REFUSALS)
        """Why the last messages were refused."""

    def _bind_local(self, token: JoinToken) -> None:
        """Listen for processes of this user on this host, without encryption. The system lets no other user in."""
        path = token.local_socket(int(self.address.rpartition(":")[2]))
        if path is not None:
            remove_dead_sockets(path.parent)
            self.router.setsockopt(zmq.CURVE_SERVER, 0)  # addresses that are bound already keep their keys
            self.router.bind(f"ipc://{path}")
            self._local = path

    def _send(self, peer: int, kind: str, fields: Fields, tensor: Tensor | None, *, stable: bool) -> None:
        if peer not in self._identities:
            raise LostPeerError(f"there is no peer {peer}")
        try:
            send_frames(self.router, [self._identities[peer]], pack_header(kind, fields, tensor), tensor, stable)
        except zmq.ZMQError as error:
            raise LostPeerError(f"peer {peer} cannot be reached ({error})") from error

    def receive(self, timeout: float | None = None) -> Message | None:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if deadline is None else max(0, deadline - time.monotonic())
            if not self.router.poll(None if left is None else int(left * 1000)):
                return None
            message = self._filter(self.router.recv_multipart(copy=False))
            if message is not None:
                self._count(message.tensor, outgoing=False)
                return message

    def disconnect(self, peer: int) -> None:
        """Accept no more messages from a client. If it is still alive, it is asked to connect again."""
        self._numbers.pop(self._identities.pop(peer, b""), None)
        self.last_heartbeat.pop(peer, None)

    def close(self) -> None:
        self.router.close()
        if self._local is not None:
            self._local.unlink(missing_ok=True)  # ZeroMQ leaves it
        self._authenticator.stop()
        self._context.term()  # waits until queued messages are sent: a process that exits at once would lose them

    def _filter(self, frames: list[zmq.Frame]) -> Message | None:
        """Return a message for the caller; None for heartbeats, unknown clients and invalid messages."""
        identity = frames[0].bytes
        try:
            kind, fields, tensor = parse_frames(frames[1:])
            requested = requested_number(fields) if kind in ("hello", "heartbeat") else None
        except ValueError as error:
            self._refuse(identity, f"invalid message ({error})")
            return None
        if kind == "heartbeat":
            self._answer_heartbeat(identity, requested)
            return None
        if kind == "hello":
            self._admit(identity, requested)
        number = self._numbers.get(identity)
        if number is None:
            self._reply(identity, "unknown", {})
            return None
        self.last_heartbeat[number] = time.monotonic()
        return Message(number, kind, fields, tensor)

    def _admit(self, identity: bytes, requested: int | None) -> None:
        number = self._numbers.get(identity, requested)
        if number is None:
            number, self._next_client = self._next_client, self._next_client + 1
        self._numbers[identity], self._identities[number] = number, identity

    def _answer_heartbeat(self, identity: bytes, number: int | None) -> None:
        if number is not None and number in self._identities:
            self.last_heartbeat[number] = time.monotonic()
        self._reply(identity, "heartbeat", {"session": self.session})

    def _refuse(self, identity: bytes, reason: str) -> None:
        self.refusals.append(reason)
        self._reply(identity, "refused", {"reason": reason})

    def _reply(self, identity: bytes, kind: str, fields: Fields) -> None:
        try:
            self.router.send_multipart([identity, pack_header(kind, fields, None)])
        except zmq.ZMQError:  # the client did not wait for the answer
            return


class TcpClient(MessageTransport):
    """Connects to one or several servers."""

    def __init__(self, *, number: int = -1) -> None:
        """Make a client.

        Args:
            number: The number of this process; -1 lets the server choose one.
        """
        super().__init__()
        self.number = number
        keep_freed_memory()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.sockets: dict[int, zmq.Socket[bytes]] = {}
        self._numbers: dict[zmq.Socket[bytes], int] = {}
        self._monitors: dict[int, zmq.Socket[bytes]] = {}
        self._poller = zmq.Poller()
        self._ready: list[zmq.Socket[bytes]] = []
        self._heartbeat: _Heartbeat | None = None
        self._patience = float("inf")

    def connect(self, peer: int, address: str, token: JoinToken) -> None:
        """Connect to a server, which need not be running yet. An earlier connection to it is closed.

        Args:
            peer: The number of the server.
            address: Its `host:port`.
            token: Its token.
        """
        self._close_dealer(peer)
        dealer = _open_dealer(self._context, address, token)
        self._monitors[peer] = dealer.get_monitor_socket(_HANDSHAKE_FAILED)
        self.sockets[peer], self._numbers[dealer] = dealer, peer
        self._poller.register(dealer, zmq.POLLIN)

    def is_refused(self, peer: int) -> bool:
        """Return whether the process at the server's address does not have its key, or refused that of this client.

        ZeroMQ does not try again after that; `connect` does.
        """
        return bool(self._monitors[peer].poll(0))

    def _close_dealer(self, peer: int) -> None:
        dealer = self.sockets.pop(peer, None)
        if dealer is not None:
            self._poller.unregister(dealer)
            del self._numbers[dealer]
            dealer.disable_monitor()
            self._monitors.pop(peer).close()
            dealer.close(0)

    def start_heartbeat(self, address: str, token: JoinToken, *, patience: float = 120.0) -> None:
        """Send heartbeats to this server. `receive` raises after `patience` seconds without an answer to them."""
        self._heartbeat, self._patience = _Heartbeat(self._context, address, token, self.number), patience

    @property
    def silence(self) -> float:
        """Seconds since the server last answered a heartbeat."""
        return 0.0 if self._heartbeat is None else time.monotonic() - self._heartbeat.last_answer

    def _send(self, peer: int, kind: str, fields: Fields, tensor: Tensor | None, *, stable: bool) -> None:
        if peer not in self.sockets:
            raise LostPeerError(f"there is no peer {peer}")
        if kind == "hello":
            fields = {**fields, "number": self.number if self.number >= 0 else None}
        header = pack_header(kind, fields, tensor)
        while True:
            with contextlib.suppress(zmq.Again):
                return send_frames(self.sockets[peer], [], header, tensor, stable)
            if self.is_refused(peer):  # ZeroMQ drops the connection then: a send would wait for ever
                if kind == "hello":
                    return None  # lost, like one that the server was killed before it read; it is sent again
                raise LostPeerError("the process at the master's address is another one")
            self._check_heartbeat()

    def _check_heartbeat(self) -> None:
        if self._heartbeat is not None and self._heartbeat.server_restarted:
            raise LostPeerError("the master was restarted")
        if self.silence > self._patience:
            raise LostPeerError(f"the master sent no heartbeat for {self._patience:g} s")

    def receive(self, timeout: float | None = None) -> Message | None:
        """Return the next message, or None after `timeout` seconds.

        Raises:
            LostPeerError: The server is gone, or was restarted and does not know this client.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._ready:
            left = HEARTBEAT_TIMEOUT
            if deadline is not None:
                left = min(left, max(0.0, deadline - time.monotonic()))
            self._ready = [ready for ready, _ in self._poller.poll(int(left * 1000))]
            self._check_heartbeat()
            if not self._ready and deadline is not None and time.monotonic() >= deadline:
                return None
        ready = self._ready.pop()
        kind, fields, tensor = parse_frames(ready.recv_multipart(copy=False))
        self._count(tensor, outgoing=False)
        if kind == "unknown":
            raise LostPeerError("the master does not know this worker any more")
        return Message(self._numbers[ready], kind, fields, tensor)

    def close(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.close()
        for peer, dealer in self.sockets.items():
            dealer.disable_monitor()
            self._monitors[peer].close()
            dealer.close()
        self._context.term()  # waits until queued messages are sent


class TcpServerAndClient(MessageTransport):
    """A process that listens and also connects to other servers: a master that is not the coordinator."""

    def __init__(self, server: TcpServer, client: TcpClient) -> None:
        super().__init__()
        self.number, self._server, self._client = server.number, server, client
        self._poller = zmq.Poller()
        for source in (server.router, *client.sockets.values()):
            self._poller.register(source, zmq.POLLIN)

    def _send(self, peer: int, kind: str, fields: Fields, tensor: Tensor | None, *, stable: bool) -> None:
        side: MessageTransport = self._client if peer in self._client.sockets else self._server
        side.send(peer, kind, fields, tensor, stable=stable)

    def receive(self, timeout: float | None = None) -> Message | None:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            for side in (self._client, self._server):
                message = side.receive(0)
                if message is not None:
                    self._count(message.tensor, outgoing=False)
                    return message
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return None
            self._poller.poll(None if left is None else int(left * 1000))

    def close(self) -> None:
        self._server.close()
        self._client.close()


class _Heartbeat:
    """A thread that sends heartbeats and receives the answers, whatever else the process does."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str, token: JoinToken, number: int) -> None:
        self.last_answer, self.server_restarted = time.monotonic(), False
        self._closed = threading.Event()
        dealer = _open_dealer(context, address, token)
        dealer.setsockopt(zmq.LINGER, 0)  # no process waits for the last heartbeat
        self._thread = threading.Thread(target=self._run, args=(dealer, number), name="heartbeat", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _run(self, dealer: zmq.Socket[bytes], number: int) -> None:
        session = None
        with dealer:
            while not self._closed.is_set():
                with contextlib.suppress(zmq.Again):  # another process is at the address and was not accepted
                    dealer.send(pack_header("heartbeat", {"number": number}, None))
                if dealer.poll(int(HEARTBEAT_INTERVAL * 1000)):
                    self.last_answer = time.monotonic()
                    current = unpack_header(dealer.recv()).fields.get("session")
                    self.server_restarted = self.server_restarted or session not in (None, current)
                    session = current
                    self._closed.wait(HEARTBEAT_INTERVAL)


@functools.cache
def keep_freed_memory() -> None:
    """Make glibc keep freed memory.

    ZeroMQ allocates memory for every tensor anew. If the system has taken freed memory back in between, touching it
    again takes about as long as receiving the tensor.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        mallopt(_M_TRIM_THRESHOLD, 512 << 20)


def _open_dealer(context: zmq.Context[zmq.Socket[bytes]], address: str, token: JoinToken) -> zmq.Socket[bytes]:
    dealer: zmq.Socket[bytes] = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.IDENTITY, uuid.uuid4().bytes)
    dealer.setsockopt(zmq.LINGER, _LINGER_MS)
    dealer.setsockopt(zmq.SNDTIMEO, _SEND_MS)
    dealer.setsockopt(zmq.RECONNECT_IVL, 100)
    dealer.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
    host, _, port = address.rpartition(":")
    try:
        path = token.local_socket(int(port))
        if path is not None and is_listening(path):
            dealer.connect(f"ipc://{path}")
        else:
            token.secure_client(dealer)
            dealer.connect(f"tcp://{socket.gethostbyname(host)}:{int(port)}")
    except (zmq.ZMQError, OSError, ValueError) as error:
        dealer.close()
        raise ConfigError(f"cannot reach {address} ({error}); give the host:port that the master printed") from error
    return dealer
