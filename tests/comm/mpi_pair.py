"""The contract of posts, over MPI, on two ranks; each plays its side."""

import torch

from clew.comm.mpi import Mpi, library

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
assert post.bytes == 5 * 4 + 3 * 8 + 2_000_000 * 2
post.close()
print("all is well")
