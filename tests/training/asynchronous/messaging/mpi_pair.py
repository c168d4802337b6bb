"""The contract of posts, over MPI, on two ranks; each plays its side."""

import torch

from clew.training.asynchronous.messaging.mpi import Mpi, library

post = Mpi()
assert library()
tensors = [torch.arange(5.0), torch.arange(3.0, dtype=torch.float64), torch.ones(2_000_000).bfloat16()]
if post.here == 1:
    for number, tensor in enumerate(tensors):
        post.send(0, "push", {"number": number}, tensor)
        tensor.zero_()
    message = post.receive(5)
    assert message is not None and message.facts == {"list": [[1, 2]]} and message.tensor is None
else:
    for number, tensor in enumerate(tensors):
        message = post.receive(5)
        assert message is not None and message.tensor is not None
        assert (message.peer, message.kind, message.facts) == (1, "push", {"number": number})
        assert message.tensor.dtype == tensor.dtype and torch.equal(message.tensor, tensor)
    assert post.receive(0.05) is None
    post.send(1, "told", {"list": [[1, 2]]})
SIZE = 300_000
lent, land = post.room((torch.float32, SIZE)), post.room((torch.float32, SIZE))
for number in range(3):
    if post.here == 1:
        lent.fill_(number)
        post.landing = {0: land[1:]}
        post.send(0, "push", {}, lent[1:], lent=True)
        message = post.receive(5)
        assert message is not None and message.tensor is not None
        assert message.tensor.data_ptr() == land[1:].data_ptr() and (message.tensor == 10 + number).all()
        post.landing = {0: land}  # what comes has another type, and is received as it is
        post.send(0, "push", {}, lent[:7], lent=True)
        message = post.receive(5)
        assert message is not None and message.tensor is not None and message.tensor.dtype == torch.bfloat16
        assert land[1] == 10 + number
    else:
        message = post.receive(5)
        assert message is not None and message.tensor is not None and (message.tensor == number).all()
        values = torch.full((SIZE - 1,), 10.0 + number)
        post.send(1, "weights", {}, values)
        values.zero_()
        message = post.receive(5)
        assert message is not None and message.tensor is not None and len(message.tensor) == 7
        post.send(1, "weights", {}, torch.ones(SIZE).bfloat16())
assert post.bytes == 3 * (4 * 2 * (SIZE - 1) + 4 * 7 + 2 * SIZE) + 5 * 4 + 3 * 8 + 2_000_000 * 2
post.close()
print("all is well")
