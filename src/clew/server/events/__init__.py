"""Notifications inside the server, and server-sent events that forward them to browsers and clients."""
