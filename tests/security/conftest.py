"""Servers and users for the attacks of this folder."""

from __future__ import annotations

from tests.server.conftest import client, client_for, person, server, shared_server

__all__ = ["client", "client_for", "person", "server", "shared_server"]
