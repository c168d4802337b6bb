"""The ranks of torch's DistributedDataParallel (gloo), on the global batches of clew."""

from __future__ import annotations

import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore
from torch.nn.parallel import DistributedDataParallel

from clew import Dataset
from clew.data.dataset.batch import to_batch
from clew.data.dataset.sampler import Sampler
from clew.settings import load_settings
from clew.training.engine import as_loss
from clew.training.optimizer import make_optimizer


def rank_of_torch(task: str, path: str, batch: int, steps: int, folder: Path, rank: int, ranks: int) -> None:
    """One rank of DistributedDataParallel, on the batches of clew."""
    torch.set_num_threads(1)
    store = FileStore(str(folder / "meeting"), ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    settings, data = load_settings(task, ()), Dataset(path)
    recipe, columns = settings.recipe, settings.recipe.columns
    torch.manual_seed(0)
    model = DistributedDataParallel(recipe.model())
    optimizer = make_optimizer(list(model.parameters()), settings.train)
    table = data.read("train", columns=list(columns or ()))
    sampler = Sampler(len(table), batch, 0, rank, ranks)
    full = len(table) // batch
    times = []
    for step in range(steps):
        epoch, place = divmod(step, full)
        share = sampler.share(sampler.batches(epoch)[place])
        start = time.perf_counter()
        samples = to_batch(table.take(share), columns)
        total, weight = as_loss(recipe.loss(recipe.forward(model, samples), samples), samples)
        torch.autograd.backward(total / weight)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        times.append(time.perf_counter() - start)
    if rank == 0:
        (folder / "seconds").write_text(str(sum(times[1:]) / len(times[1:])))
    dist.barrier()
    dist.destroy_process_group()
