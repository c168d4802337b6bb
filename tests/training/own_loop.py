"""A user-defined training loop with the three calls of clew."""

import sys

import torch
from torch import nn

import clew

here = clew.distributed.setup(sys.argv[2], threads=1, note="mine")
torch.manual_seed(0)
model = clew.distributed.wrap(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1)))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
batches = clew.distributed.wrap(clew.Dataset(sys.argv[1]), batch_size=24, columns=["x", "y"])
for epoch in range(2):
    for batch in batches(epoch):
        loss = ((model(batch["x"]).squeeze(1) - batch["y"]) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        clew.distributed.log(loss=loss)
    clew.distributed.log(val_norm=sum(float(p.norm()) for p in model.parameters()))
if len(sys.argv) > 3:
    raise ValueError("boom on purpose")
