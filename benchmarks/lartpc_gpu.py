"""How fast the network of liquid-argon images learns on an accelerator: clew's kernels against plain PyTorch.

Plain PyTorch in its best variant: bf16 autocast, channels_last, torch.compile, dense images on the device already.
clew: lists of pixels on the device, bf16, the whole step (scatter, forward, loss, backward, fused Adam) as one CUDA
graph. The same weights and the same images of 3600 x 3600. `tracks` have charge in 1.4% of their pixels; `dense` images
have it everywhere, so that lists do not help: whole images are used. `fed` is `clew train` itself, from images
in compressed memory. Errors are measured first: each block against float64 with the same inputs, the fraction of
winners that differ, and the gradients of the complete network compared with those of plain bf16.
Without a device only plain PyTorch is tried, at a small image, and nothing is measured against a bar.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from _contest import Sheet, alternate, main, options, quartile, seconds
from _fed import fed
from _lartpc import Pixels, tracks
from torch import Tensor
from torch.nn import functional as f

from clew.recipes.lartpc import ops
from clew.recipes.lartpc.kernels import portable
from clew.recipes.lartpc.network import WireImageNet, dense_images

SHARE = 0.014
BARS = {1: 1700, 16: 6500, 64: 7500}
"""Images/s by batch size, on tracks."""
DENSE = 1900
TOLERANCE = 3e-3
Step = Callable[[], None]


def on(device: torch.device, pixels: Pixels) -> Pixels:
    index, charge, offsets = (each.to(device) for each in pixels)
    return index, charge, offsets


def full(events: int, side: int) -> Pixels:
    """Charge in every pixel: whole images, in bf16."""
    charge = (torch.rand(events * side * side) + 0.1).bfloat16()
    return torch.empty(0, dtype=torch.int32), charge, torch.arange(events + 1) * side * side


def frames(path: str, side: int) -> Pixels:
    """Real frames, cut or filled up to the size of the image."""
    from clew import concat
    from clew.recipes.lartpc import event_files

    table = concat(list(event_files.read_events(path, (side, side))))
    index = table.ragged("index")
    parts = (index.values, table.ragged("charge").values, index.offsets)
    return tuple(torch.from_numpy(each) for each in parts)  # type: ignore[return-value]


def learner(network: WireImageNet, look: Callable[[], Tensor], label: Tensor) -> Step:
    """A training step in bf16."""
    device = label.device
    captured: dict[str, Any] = {"fused": True, "capturable": True} if device.type == "cuda" else {}
    optimizer = torch.optim.Adam(network.parameters(), 5e-4, **captured)

    def learn() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16):
            loss = f.cross_entropy(look(), label)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return learn


def captured(learn: Step) -> Step:
    """The same step as one CUDA graph."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            learn()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        learn()
    return graph.replay


def plain(network: WireImageNet, pixels: Pixels, label: Tensor) -> Step:
    """The best variant of PyTorch; without a device, the plain network."""
    image = dense_images(*pixels, network.height, network.width)
    if label.device.type != "cuda":
        return learner(network, lambda: network.dense(image), label)
    image = image.to(memory_format=torch.channels_last)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    dense = torch.compile(network.dense)
    return learner(network, lambda: dense(image), label)


def timed(learn: Step, steps: int) -> Callable[[], float]:
    """Seconds of a step."""

    def block() -> None:
        for _ in range(steps):
            learn()
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    return lambda: seconds(block) / steps


def contest(sheet: Sheet, name: str, pixels: Pixels, side: int, bar: float, *, rounds: int, rival: bool) -> float:
    """Images/s of both, and memory of clew; returns images/s of clew."""
    device, batch = pixels[0].device, len(pixels[2]) - 1
    label = torch.arange(batch, device=device) % 5
    torch.manual_seed(1)
    network = WireImageNet(side, side).to(device)
    torch.cuda.reset_peak_memory_stats()
    contestants = {"clew": timed(captured(learner(network, lambda: network(*pixels), label)), 5)}
    memory = torch.cuda.max_memory_allocated() / 2**30
    if rival:
        other = WireImageNet(side, side).to(device)
        other.load_state_dict(network.state_dict())
        contestants["plain"] = timed(plain(other, pixels, label), 2)
        contestants["plain again"] = contestants["plain"]
    times = {each: quartile(seconds_by_name) for each, seconds_by_name in alternate(contestants, rounds).items()}
    for each, seconds_by_name in times.items():
        sheet.state(f"{name}, batch {batch}: {each}", batch / seconds_by_name, "images/s")
    sheet.bar(f"{name}, batch {batch}: clew", batch / times["clew"], bar, "images/s")
    sheet.state(f"{name}, batch {batch}: peak memory of clew", memory, "GiB")
    return batch / times["clew"]


def errors(sheet: Sheet, name: str, pixels: Pixels, side: int) -> None:
    """Each block in bf16 against float64 with the same inputs and winners."""
    torch.manual_seed(3)
    network = WireImageNet(side, side).to(pixels[0].device)
    index, charge, offsets = pixels[0], pixels[1].bfloat16(), pixels[2]
    with torch.no_grad():
        for each in network.parameters():
            each.copy_(each.bfloat16())
    fill: Any = None
    x: Any = None
    active: Any = None
    for number, block in enumerate(network.blocks, 1):
        weight, bias = (each.detach() for each in block.parameters())
        before, fill = fill, ops.background(fill, weight, bias)
        if x is None:
            y, winner, y_active, _ = ops.pixels(index, charge, offsets, fill, weight, bias, side, side)
            exact = portable.dense_images(index, charge.double(), offsets, side, side)
        elif ops.uses_cell_lists(x, weight):
            y, winner, y_active = ops.cells(x, active, before, fill, weight, bias)
            exact = x.double()
        else:
            (y, winner), exact = ops.dense_block(x, weight, bias), x.double()
            y_active = torch.ones(y.shape[:3], dtype=torch.bool, device=y.device)
        z = f.conv2d(exact.permute(0, 3, 1, 2), weight.double(), bias.double(), padding=2)
        best, place = f.max_pool2d(z, 5, return_indices=True)
        true = (place // z.shape[3] % 5 * 5 + place % z.shape[3] % 5).permute(0, 2, 3, 1)
        expected = f.elu(best).permute(0, 2, 3, 1)
        off = float((y.double() - expected).norm() / expected.norm())
        sheet.bar(f"{name}: block {number} forward, error", off, TOLERANCE, "of its norm", lower=True)
        sheet.state(
            f"{name}: block {number}, winners that differ", float((true != winner)[y_active].double().mean()), ""
        )
        x, active = y, y_active


def gradients(sheet: Sheet, name: str, pixels: Pixels, side: int) -> None:
    """Whole-network gradients of clew and of plain bf16, against plain float64: those of clew must not be worse."""
    device = pixels[0].device
    label = torch.arange(len(pixels[2]) - 1, device=device) % 5
    torch.manual_seed(1)
    network = WireImageNet(side, side).to(device)
    image, parameters = dense_images(*pixels, side, side), tuple(network.parameters())
    exact = WireImageNet(side, side).to(device).double()
    exact.load_state_dict(network.state_dict())
    truth = torch.autograd.grad(f.cross_entropy(exact.dense(image.double()), label), tuple(exact.parameters()))
    off = {}
    for kind, look in (("clew", lambda: network(*pixels)), ("plain", lambda: network.dense(image))):
        with torch.autocast(device.type, torch.bfloat16):
            loss = f.cross_entropy(look(), label)
        gradient = torch.autograd.grad(loss, parameters)
        each = [float((a - b).norm() / b.norm()) for a, b in zip(gradient, truth, strict=True)]
        print(kind, " ".join(f"{one:.3g}" for one in each), flush=True)
        off[kind] = max(each)
        sheet.state(f"{name}: largest error of a gradient, {kind}", off[kind], "of its norm")
    sheet.bar(f"{name}: that of clew over that of plain", off["clew"] / off["plain"], 1.1, "times", lower=True)


def measure(sheet: Sheet, folder: Path, arguments: argparse.Namespace) -> Mapping[str, Any]:
    side, rounds = arguments.side, 3 if arguments.quick else 7
    if not torch.cuda.is_available():
        print("no accelerator: plain PyTorch is tried on the processor, nothing is measured against a bar")
        pixels, label = tracks(1, min(side, 700), SHARE), torch.tensor([1])
        learn = plain(WireImageNet(min(side, 700), min(side, 700)), pixels, label)
        sheet.state("plain, on the processor, a small image", 1 / timed(learn, 1)(), "images/s")
        return {"side": min(side, 700), "device": "cpu"}
    device = torch.device("cuda")
    two_events = on(device, tracks(2, side, SHARE))
    errors(sheet, "tracks", two_events, side)
    gradients(sheet, "tracks", two_events, side)
    rates = {}
    for batch, bar in BARS.items():
        pixels = on(device, tracks(batch if batch < 8 else 8, side, SHARE, seed=batch))
        pixels = repeated(pixels, batch)
        rates[batch] = contest(sheet, "tracks", pixels, side, bar, rounds=rounds, rival=batch == 16)
        torch.cuda.empty_cache()
    if arguments.frames:
        real = on(device, frames(arguments.frames, side))
        errors(sheet, "real frames", real, side)
        contest(sheet, "real frames", repeated(real, 16), side, 0, rounds=rounds, rival=False)
        torch.cuda.empty_cache()
    contest(sheet, "dense", on(device, full(16, side)), side, DENSE, rounds=rounds, rival=False)
    torch.cuda.empty_cache()
    for batch in (64, 16):
        fed(sheet, folder / f"fed-{batch}", tracks(8, side, SHARE), side, batch=batch, epochs=8, rate=rates[batch])
    return {"side": side, "device": torch.cuda.get_device_name(), "torch": torch.__version__}


def repeated(pixels: Pixels, batch: int) -> Pixels:
    """Repeat events until there are `count`."""
    index, charge, offsets = pixels
    events = len(offsets) - 1
    times = -(-batch // events)
    lengths = offsets.diff().repeat(times)[:batch]
    ends = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    return index.repeat(times)[: int(ends[-1])], charge.repeat(times)[: int(ends[-1])], ends


if __name__ == "__main__":
    parser = options(__doc__, "fewer rounds")
    parser.add_argument("--side", type=int, default=3600, help="rows and columns of an image (default: 3600)")
    parser.add_argument("--frames", help="a file of real frames (tar), to be among the inputs")
    sys.exit(main(measure, parser))
