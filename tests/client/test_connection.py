"""Messages of a connection: what a proxy answers while the server is down, and a certificate that is not accepted."""

from __future__ import annotations

import http.server
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from clew.client.connection import Connection
from clew.errors import ServerError


@contextmanager
def answering(*codes: int, certificate: Path | None = None) -> Iterator[tuple[str, list[str]]]:
    """A server that answers with these codes, the last one again and again. Yields its address and what was asked."""
    asked: list[str] = []

    class Answer(http.server.BaseHTTPRequestHandler):
        def _answer(self) -> None:
            asked.append(self.path)
            code = codes[min(len(asked), len(codes)) - 1]
            body = b"{}" if code == 200 else b"<html>Bad Gateway</html>"
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self._answer()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, certificate.with_suffix(".key"))
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http{'s' if certificate else ''}://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def proven(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the proof of the server, which has tests of its own."""
    monkeypatch.setattr("clew.client.server_proof.ServerCheck.__call__", lambda *_: None)


@pytest.mark.usefixtures("proven")
def test_a_request_waits_until_the_server_behind_a_proxy_is_back() -> None:
    with answering(502, 504, 200) as (address, asked), Connection(address, "clew_token") as connection:
        assert connection.call("GET", "/me") == {}
        assert len(asked) == 3


@pytest.mark.usefixtures("proven")
def test_what_must_not_be_sent_twice_is_sent_once_through_a_proxy() -> None:
    with answering(504) as (address, asked), Connection(address, "clew_token") as connection:
        with pytest.raises(ServerError, match="the server behind it does not; is `clew serve` running"):
            connection.call("POST", "/tokens", body={}, repeatable=False)
        assert len(asked) == 1


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate that only its maker knows."""
    file = tmp_path / "cert.pem"
    names = ["-subj", "/CN=clew", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names]
    keys = ["-keyout", str(file.with_suffix(".key")), "-out", str(file)]
    subprocess.run([*command, *keys], check=True, capture_output=True)
    return file


def test_a_certificate_of_an_authority_of_the_site_needs_its_file(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with answering(200, certificate=certificate) as (address, _):
        with (
            Connection(address, "clew_token", retry_seconds=0) as connection,
            pytest.raises(ServerError, match="set SSL_CERT_FILE to the file"),
        ):
            connection.call("GET", "/me")
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        with Connection(address, "clew_token", retry_seconds=0) as connection:
            assert connection.call("GET", "/me") == {}
