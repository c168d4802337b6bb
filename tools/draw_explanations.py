"""Draw the pictures of docs/explanation into docs/images/explanation: `python tools/draw_explanations.py`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from svg_diagrams import WIDTH, Message, Picture, Stop, Together, Work, path, sequence

FOLDER = Path(__file__).parents[1] / "docs" / "images" / "explanation"
RANKS = ["rank 0", "rank 1", "rank 2"]
MASTER = ["worker A", "master", "worker B"]


def event_path() -> str:
    """From a raw file to a prediction."""
    return path(
        "the path of one event: raw file, table, samples, dataset, batch, weights, prediction",
        [
            Stop(["raw file", "ROOT, HDF5, Parquet, ..."], ["Recipe.read, with a reader"]),
            Stop(["table", "events in columns"], ["transforms: select, scale, ..."]),
            Stop(["table", "selected and scaled events"], ["Recipe.prepare"]),
            Stop(["samples", "what the model takes"], ["assign to a split; write HDF5 shards and the manifest"]),
            Stop(
                ["dataset", "train, val, test; named by a content key"], ["Sampler: which batch; Loader: to the device"]
            ),
            Stop(
                ["batch", "tensors of one step, divided among the ranks"],
                ["Recipe.step: loss; Strategy: sum of gradients"],
            ),
            Stop(["weights", "after the step of the optimiser"], ["validation; checkpoint"], kind="state"),
            Stop(
                ["run", "records, checkpoints, fitted scaling, code"],
                ["a new event: same read, transforms, prepare"],
                "state",
            ),
            Stop(["prediction", "one row per event"]),
        ],
    )


def content_keys() -> str:
    """The chain of keys, and what is part of each."""
    return path(
        "each key is the hash of the key before it and of the code and settings of one stage",
        [
            Stop(
                ["content of the input file", "SHA-256, and the number of the piece"],
                ["hash with: code and settings of reading"],
            ),
            Stop(["key of read"], ["hash with: code and settings of the first transform"], "state"),
            Stop(["key of transform 1"], ["hash with: code and settings of the second transform"], "state"),
            Stop(["key of transform 2"], ["hash with: code of prepare, and the settings it uses"], "state"),
            Stop(["key of prepare", "the samples of this piece, in the cache"], kind="state"),
        ],
    )


def exact_resume() -> str:
    """Three lines of steps: never stopped, killed, resumed."""
    picture = Picture(
        "a run that was killed after step 5 and resumed from the state of step 3 ends with the same weights"
    )
    rows = [("never stopped", range(1, 9), "code"), ("killed", range(1, 6), "lost"), ("resumed", range(4, 9), "code")]
    y = 14
    for name, steps, kind in rows:
        picture.text(8, y + 20, name, size=13, anchor="start", bold=True)
        for step in steps:
            picture.box(120 + 52 * (step - 1), y, 44, [str(step)], kind="code" if step <= 3 else kind)
        y += 62
    picture.line(120 + 52 * 2 + 22, 14 + 62 + 31, 120 + 52 * 3 + 10, 14 + 124, dashed=True)
    picture.text(120 + 52 * 2 + 10, 14 + 62 + 52, "state of step 3", size=13, anchor="end")
    picture.text(120 + 52 * 5 + 8, 14 + 62 + 20, "kill -9", size=13, anchor="start")
    picture.text(
        WIDTH - 8,
        y + 2,
        "steps 4 and 5 are done again, with the same batches: same weights after step 8",
        size=13,
        anchor="end",
    )
    picture.height = y + 16
    return picture.svg()


def allreduce() -> str:
    """One step of the strategy allreduce."""
    return sequence(
        "allreduce: every rank computes, gradients are summed over all ranks, every rank steps",
        RANKS,
        [
            *[Work(rank, "forward and\nbackward on its\nshare of a batch", row=1) for rank in range(3)],
            Together("all-reduce\nsum of gradients, and total and weight of the loss"),
            *[Work(rank, "divide by\nthe weight", row=2) for rank in range(3)],
            *[Work(rank, "optimiser step\non all weights", "state", row=3) for rank in range(3)],
        ],
    )


def sharded() -> str:
    """One step of the strategy sharded."""
    return sequence(
        "sharded: every rank holds a part of the weights and gathers the rest block by block",
        RANKS,
        [
            *[Work(rank, f"holds part {rank}\nof the weights", "state", row=1) for rank in range(3)],
            Together("for each block, forwards\nall-gather its weights, compute, release them"),
            Together("for each block, backwards\nall-gather its weights, compute; reduce-scatter its gradients"),
            Together("all-reduce\ntotal and weight of the loss"),
            *[Work(rank, f"divide, then step\non part {rank}", "state", row=2) for rank in range(3)],
        ],
    )


def downpour() -> str:
    """Two exchanges of downpour; the second update is stale."""
    return sequence(
        "downpour: the master steps with each gradient as it arrives",
        MASTER,
        [
            Work(0, "gradient of\nits batch", row=1),
            Work(2, "gradient of\nits batch", row=1),
            Message(0, 1, "gradient"),
            Work(1, "optimiser step", "state"),
            Message(1, 0, "weights"),
            Message(2, 1, "gradient"),
            Work(1, "optimiser step", "state"),
            Message(1, 2, "weights"),
            Together("B's gradient was of weights from before A's update: staleness 1", "plain"),
        ],
    )


def easgd() -> str:
    """One exchange of easgd."""
    return sequence(
        "easgd: a worker and the centre move towards each other",
        ["worker", "master"],
        [
            Work(0, "4 steps of its own\nweights x"),
            Message(0, 1, "x"),
            Work(1, "the centre moves\nc + alpha (x - c)", "state"),
            Message(1, 0, "the new c"),
            Work(0, "the worker moves\nx - alpha (x - c)", "state"),
        ],
    )


def gem() -> str:
    """One exchange of gem."""
    return sequence(
        "gem: a worker fetches the weights, scales its step, and sends the step",
        ["worker", "master"],
        [
            Work(0, "1 step of its own\nmomentum of its steps"),
            Message(0, 1, "pull"),
            Message(1, 0, "weights"),
            Work(
                0, "how far did others move?\nscale the step, element by element\ncontinue from weights + step", "state"
            ),
            Message(0, 1, "commit: the scaled step (no answer)", dashed=True),
            Work(1, "the weights move\nadd the step", "state"),
        ],
    )


def diloco() -> str:
    """One round of diloco."""
    return sequence(
        "diloco: the master waits for all workers, averages, and takes an outer step",
        MASTER,
        [
            Work(0, "20 steps\nof its own", row=1),
            Work(2, "20 steps\nof its own", row=1),
            Message(0, 1, "how far it moved"),
            Work(0, "waits", "plain"),
            Message(2, 1, "how far it moved"),
            Work(1, "mean of both\nNesterov step", "state"),
            Message(1, 0, "weights"),
            Message(1, 2, "weights"),
        ],
    )


def batch_lease() -> str:
    """A worker dies; another one trains on the rest of its lease."""
    return sequence(
        "batches of a killed worker are leased to another worker",
        ["worker A", "coordinator", "worker B"],
        [
            Message(1, 0, "lease: batches 0 to 9"),
            Message(1, 2, "lease: batches 10 to 19"),
            Message(0, 1, "update: 3 batches done"),
            Work(0, "kill -9", "lost"),
            Work(1, "no heartbeat for 5 s\nbatches 3 to 9\nwait again", "state"),
            Message(2, 1, "its lease is done"),
            Message(1, 2, "lease: batches 3 to 9"),
            Message(2, 1, "update"),
        ],
    )


def file_lease() -> str:
    """A trial hangs; its lease is revoked and the trial is assigned again."""
    return sequence(
        "a trial that hangs loses its lease file, and a second attempt continues from its checkpoint",
        ["coordinator", "lease file", "trial"],
        [
            Message(0, 1, "create"),
            Message(2, 1, "touch, every 0.5 s"),
            Work(2, "hangs", "lost"),
            Message(0, 1, "not touched in time: delete"),
            Together(
                "second attempt: a new lease file\nand a new process, which continues from the checkpoint", "state"
            ),
            Work(2, "first process\nwakes up"),
            Message(2, 1, "touch: no such file", dashed=True),
            Work(2, "ends, and\nwrites nothing", "state"),
        ],
    )


def recorded_steps() -> str:
    """One step without and one with a recording."""
    return sequence(
        "a step without a recording, and the same step replayed from a recording",
        ["processor", "GPU"],
        [
            Together("without a recording", "plain"),
            Message(0, 1, "launch kernel 1"),
            Message(0, 1, "launch kernel 2"),
            Message(0, 1, "... hundreds more"),
            Message(0, 1, "optimiser step"),
            Together("with a recording", "plain"),
            Message(0, 1, "copy the batch into its memory"),
            Message(0, 1, "replay the graph"),
            Work(1, "all kernels of forward\nand backward", "state"),
            Message(0, 1, "optimiser step"),
        ],
    )


def kernels() -> str:
    """One block of the liquid-argon network, in plain PyTorch and in one kernel."""
    picture = Picture("a block in plain PyTorch writes whole images three times; one kernel writes active cells once")
    columns = [
        (
            "plain PyTorch",
            [
                (["image", "all pixels"], "data"),
                (["convolution", "25 products per position"], "code"),
                (["all positions", "written, then read"], "lost"),
                (["bias and ELU"], "code"),
                (["all positions", "written, then read"], "lost"),
                (["maximum of 5x5"], "code"),
                (["cells"], "state"),
            ],
        ),
        (
            "kernel of clew",
            [
                (["image and list of active cells", "cells that see charge"], "data"),
                (
                    ["one kernel, active cells only", "convolution in registers", "maximum of 5x5", "bias and ELU"],
                    "code",
                ),
                (["cells, and the winning position", "of each, for the gradient"], "state"),
            ],
        ),
    ]
    height = 0.0
    for number, (name, stops) in enumerate(columns):
        x, width, y = 10 + 270 * number, 250, 34.0
        picture.text(x + width / 2, 22, name, bold=True)
        for place, (lines, kind) in enumerate(stops):
            y += picture.box(x, y, width, lines, kind=kind)
            if place + 1 < len(stops):
                picture.line(x + width / 2, y, x + width / 2, y + 21)
                y += 22
        height = max(height, y)
    picture.text(280, 300, "Inactive cells of a channel have one", size=13, anchor="start")
    picture.text(280, 318, "value. It is computed once.", size=13, anchor="start")
    picture.height = int(height + 10)
    return picture.svg()


PICTURES = {
    "event-path": event_path,
    "content-keys": content_keys,
    "exact-resume": exact_resume,
    "allreduce": allreduce,
    "sharded": sharded,
    "downpour": downpour,
    "easgd": easgd,
    "gem": gem,
    "diloco": diloco,
    "batch-lease": batch_lease,
    "file-lease": file_lease,
    "recorded-steps": recorded_steps,
    "kernels": kernels,
}
"""File name without its end, and the function that returns the SVG."""


def main() -> None:
    """Write all pictures."""
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw())


if __name__ == "__main__":
    main()
