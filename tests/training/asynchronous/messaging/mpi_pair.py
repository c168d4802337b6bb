"""The contract of transports over MPI, on two ranks, which both run this script."""

import torch

from clew.training.asynchronous.messaging.mpi import MpiTransport, mpi_library

transport = MpiTransport()
assert mpi_library()
tensors = [torch.arange(5.0), torch.arange(3.0, dtype=torch.float64), torch.ones(2_000_000).bfloat16()]
if transport.number == 1:
    for number, tensor in enumerate(tensors):
        transport.send(0, "push", {"number": number}, tensor)
        tensor.zero_()
    message = transport.receive(5)
    assert message is not None and message.fields == {"list": [[1, 2]]} and message.tensor is None
else:
    for number, tensor in enumerate(tensors):
        message = transport.receive(5)
        assert message is not None and message.tensor is not None
        assert (message.peer, message.kind, message.fields) == (1, "push", {"number": number})
        assert message.tensor.dtype == tensor.dtype and torch.equal(message.tensor, tensor)
    assert transport.receive(0.05) is None
    transport.send(1, "status", {"list": [[1, 2]]})
SIZE = 300_000
outgoing, buffer = transport.allocate((torch.float32, SIZE)), transport.allocate((torch.float32, SIZE))
for number in range(3):
    if transport.number == 1:
        outgoing.fill_(number)
        transport.receive_buffers = {0: buffer[1:]}
        transport.send(0, "push", {}, outgoing[1:], stable=True)
        message = transport.receive(5)
        assert message is not None and message.tensor is not None
        assert message.tensor.data_ptr() == buffer[1:].data_ptr() and (message.tensor == 10 + number).all()
        transport.receive_buffers = {0: buffer}  # the answer has another type: the buffer is not used
        transport.send(0, "push", {}, outgoing[:7], stable=True)
        message = transport.receive(5)
        assert message is not None and message.tensor is not None and message.tensor.dtype == torch.bfloat16
        assert buffer[1] == 10 + number
    else:
        message = transport.receive(5)
        assert message is not None and message.tensor is not None and (message.tensor == number).all()
        values = torch.full((SIZE - 1,), 10.0 + number)
        transport.send(1, "weights", {}, values)
        values.zero_()
        message = transport.receive(5)
        assert message is not None and message.tensor is not None and len(message.tensor) == 7
        transport.send(1, "weights", {}, torch.ones(SIZE).bfloat16())
assert transport.bytes == 3 * (4 * 2 * (SIZE - 1) + 4 * 7 + 2 * SIZE) + 5 * 4 + 3 * 8 + 2_000_000 * 2
transport.close()
print("contract fulfilled")
