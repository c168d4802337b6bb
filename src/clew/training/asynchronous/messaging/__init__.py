"""Messages between the processes of an asynchronous training.

`transport.py` has the contract. It has three implementations: `direct.py` (within one process), `mpi.py` (with
`shared_memory.py` for ranks of one host) and `tcp.py`.
"""

from clew.training.asynchronous.messaging.transport import Fields, Message, MessageTransport

__all__ = ["Fields", "Message", "MessageTransport"]
