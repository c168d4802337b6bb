"""The token of a training: the keys with which workers and masters prove to each other who they are.

Masters and workers authenticate each other with CURVE. A worker knows the public key of the master, and the master
accepts only the key of the workers. Neither side sends anything before the other has proved that it has its key, and no
key is ever sent.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zmq
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils import z85

from clew.core.private_files import private_folder, read_private, write_private
from clew.errors import ConfigError, RunError

_PREFIX = "clewjoin"
_SHAPE = re.compile(rf"{_PREFIX}_([0-9a-f]{{64}})_([0-9a-f]{{64}})")
_HANDSHAKE_MS = 10_000
"""Milliseconds in which a peer must prove that it has its key."""
_MAX_PATH = 100
"""Bytes of the path of a Unix socket; the limit of Linux is 107."""


@dataclass(frozen=True)
class JoinToken:
    """Keys of a training, in hexadecimal."""

    public_key: str
    """The public key of the masters."""
    worker_key: str
    """The private key of the workers."""
    private_key: str = ""
    """The private key of the masters. Workers do not have it, and `str` does not contain it."""

    @classmethod
    def new(cls) -> JoinToken:
        """Make a token with new keys."""
        public, private = zmq.curve_keypair()
        return cls(z85.decode(public).hex(), z85.decode(zmq.curve_keypair()[1]).hex(), z85.decode(private).hex())

    @classmethod
    def parse(cls, text: str) -> JoinToken:
        """Return the token that `str` wrote, without the private key of the masters.

        Args:
            text: `clewjoin_`, the public key of the masters, `_`, and the private key of the workers.

        Raises:
            ConfigError: It is something else, for instance the token of a server.
        """
        match = _SHAPE.fullmatch(text.strip())
        if match is None:
            kind = "a token of a server" if text.startswith("clew_") else "no token of a training"
            raise ConfigError(f"this is {kind}; that of a training begins with {_PREFIX}_ and is in RUN/token")
        return cls(match[1], match[2])

    def __str__(self) -> str:
        return f"{_PREFIX}_{self.public_key}_{self.worker_key}"

    def __repr__(self) -> str:
        return f"JoinToken({self.public_key})"

    def secure_server(self, router: zmq.Socket[Any]) -> ThreadAuthenticator:
        """Make a socket accept only peers with the key of the workers, at the addresses that it binds from now on.

        Returns:
            The thread that checks keys. Stop it before the context of the socket ends.
        """
        authenticator = ThreadAuthenticator(router.context)
        authenticator.start()
        authenticator.configure_curve_callback(credentials_provider=_OneKey(_public(self.worker_key)))
        router.setsockopt(zmq.CURVE_SERVER, 1)
        router.setsockopt(zmq.CURVE_SECRETKEY, _z85(self.private_key))
        router.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
        return authenticator

    def secure_client(self, dealer: zmq.Socket[Any]) -> None:
        """Make a socket talk only to a master with the key of this token."""
        dealer.setsockopt(zmq.CURVE_SERVERKEY, _z85(self.public_key))
        dealer.setsockopt(zmq.CURVE_PUBLICKEY, _public(self.worker_key))
        dealer.setsockopt(zmq.CURVE_SECRETKEY, _z85(self.worker_key))

    def local_socket(self, port: int) -> Path | None:
        """Return where a master that listens on a port also listens for processes of the same user on its host.

        It is a Unix socket in a folder that only the user can enter. The system itself authenticates both sides, so
        tensors need no encryption, which would make the exchange on one host several times slower.

        Returns:
            None if this user has no such folder.
        """
        name = hashlib.sha256(f"{self.public_key} {port}".encode()).hexdigest()[:24]
        try:
            path = private_folder() / name
        except (RunError, OSError):
            return None
        return path if len(str(path)) <= _MAX_PATH else None


class _OneKey:
    """Accepts one public key, in the encoding of ZeroMQ."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def callback(self, domain: str, key: bytes) -> bool:
        return key == self._key


def load_or_make_token(file: Path) -> JoinToken:
    """Return the token of a run. It stays the same when the run is resumed. Only the owner can read its file."""
    with contextlib.suppress(FileNotFoundError, ConfigError):
        return read_token(file)
    token = JoinToken.new()
    write_private(file, f"{token}\n{token.private_key}\n")
    return token


def read_token(file: Path) -> JoinToken:
    """Return the token of a run with the private key of the masters.

    Raises:
        ConfigError: The file holds something else.
        RunError: Another user wrote the file.
        FileNotFoundError: There is none.
    """
    public, _, private_key = read_private(file).partition("\n")
    token = JoinToken.parse(public)
    return JoinToken(token.public_key, token.worker_key, private_key.strip())


def is_listening(path: Path) -> bool:
    """Return whether a process listens on a Unix socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def _z85(key: str) -> bytes:
    return z85.encode(bytes.fromhex(key))


def _public(private_key: str) -> bytes:
    return zmq.curve_public(_z85(private_key))
