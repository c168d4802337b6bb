"""How fast the network of liquid-argon images learns on 2 cores: clew's lists of cells against plain PyTorch.

The same weights and the same images of 3600 x 3600, a whole training step (forward, loss, backward, Adam), in turns in
one process, and plain PyTorch against itself as the control. Plain PyTorch gets dense images that are there already,
clew gets lists of pixels. `tracks` have charge in 1.4% of their pixels, as real frames have; `particle` is one track.
Logits and gradients are compared first.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from _contest import Sheet, alternate, main, options, quartile, seconds
from _lartpc import Pixels, tracks
from torch import Tensor
from torch.nn import functional as f

from clew.recipes.lartpc.network import WireImageNet, dense_images

SHARES = {"tracks": 0.014, "particle": 0.0003}
"""Shares of pixels that are not zero."""
THREADS = 2


def step(network: WireImageNet, look: Callable[[], Tensor], label: Tensor) -> Callable[[], float]:
    """One training step, timed."""
    optimizer = torch.optim.Adam(network.parameters(), 5e-4)

    def learn() -> None:
        optimizer.zero_grad()
        f.cross_entropy(look(), label).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return lambda: seconds(learn)


def difference(network: WireImageNet, pixels: Pixels, dense: Tensor, label: Tensor) -> tuple[float, float]:
    """The largest of a logit, and the largest of a gradient over its norm, between clew and plain PyTorch."""
    logits = [network(*pixels), network.dense(dense)]
    parameters = tuple(network.parameters())
    clew_values, torch_values = (torch.autograd.grad(f.cross_entropy(each, label), parameters) for each in logits)
    off = [float((one - two).norm() / two.norm()) for one, two in zip(clew_values, torch_values, strict=True)]
    return float((logits[0] - logits[1]).detach().abs().max()), max(off)


def contest(sheet: Sheet, kind: str, side: int, batch: int, rounds: int) -> None:
    """Clew, plain PyTorch and plain PyTorch again, on one kind of image."""
    pixels, label = tracks(batch, side, SHARES[kind]), torch.arange(batch) % 5
    torch.manual_seed(1)
    network, plain = (WireImageNet(side, side) for _ in range(2))
    plain.load_state_dict(network.state_dict())
    dense = dense_images(*pixels, side, side)
    logit, gradient = difference(copy.deepcopy(network), pixels, dense, label)
    sheet.bar(f"{kind}: logits differ by", logit, 1e-4, "", lower=True)
    sheet.bar(f"{kind}: gradients differ by (arg-max flips included)", gradient, 2e-2, "of their norm", lower=True)
    contestants = {
        "clew": step(network, lambda: network(*pixels), label),
        "plain": step(plain, lambda: plain.dense(dense), label),
        "plain again": step(plain, lambda: plain.dense(dense), label),
    }
    times = {name: quartile(each) for name, each in alternate(contestants, rounds).items()}
    for name, each in times.items():
        sheet.state(f"{kind}: {name}", batch / each, "images/s")
    sheet.bar(f"{kind}: clew against plain PyTorch", times["plain"] / times["clew"], 5, "times the images/s")
    sheet.state(f"{kind}: control, plain against itself", times["plain"] / times["plain again"], "times")


def measure(sheet: Sheet, folder: Path, arguments: argparse.Namespace) -> Mapping[str, Any]:
    torch.set_num_threads(THREADS)
    side, batch, rounds = (arguments.side, 1, 2) if arguments.quick else (arguments.side, 1, 4)
    for kind in SHARES:
        contest(sheet, kind, side, batch, rounds)
    return {"side": side, "batch": batch, "threads": THREADS, "shares": SHARES}


if __name__ == "__main__":
    parser = options(__doc__, "fewer rounds")
    parser.add_argument("--side", type=int, default=3600, help="rows and columns of an image (default: 3600)")
    sys.exit(main(measure, parser))
