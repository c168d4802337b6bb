"""The receiving side of `async.py`: a raw socket read into one buffer, and a server of clew; both answer blocks."""

import socket
import threading

from clew.training.asynchronous.messaging.join_token import JoinToken
from clew.training.asynchronous.messaging.tcp import TcpServer

SIZE, BLOCK = 4 * 1_244_060, 10


def raw(listening: socket.socket) -> None:
    line, _ = listening.accept()
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    buffer = memoryview(bytearray(SIZE))
    while True:
        for _ in range(BLOCK):
            got = 0
            while got < SIZE:
                count = line.recv_into(buffer[got:])
                if not count:
                    return
                got += count
        line.sendall(b"k")


def main() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    token = JoinToken.new()
    server = TcpServer(token=token)
    print(listening.getsockname()[1], server.address, token, flush=True)
    threading.Thread(target=raw, args=(listening,), daemon=True).start()
    while True:
        message = server.receive()
        assert message is not None
        if message.fields.get("last"):
            server.send(message.peer, "status")
