"""Messages between the processes of an asynchronous training: within a process, over MPI, or over TCP."""

from clew.training.asynchronous.messaging.transport import Facts, Message, Post

__all__ = ["Facts", "Message", "Post"]
