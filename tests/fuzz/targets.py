"""What is fuzzed: for each target, valid examples, how they are changed, and the code that reads the result."""

from __future__ import annotations

import io
import json
import random
import sys
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tests.fuzz.mutations import changed_bytes, changed_json, nested


class Target(ABC):
    """One thing that clew reads."""

    name: ClassVar[str]
    file_name: ClassVar[str] = "input"
    is_json: ClassVar[bool] = False

    @abstractmethod
    def write_examples(self, folder: Path) -> None:
        """Write valid inputs: one file each."""

    def open(self, folder: Path) -> None:  # noqa: B027 (most targets need nothing)
        """Import and open what is needed, once per process. `folder` is the process's own."""

    @abstractmethod
    def read(self, path: Path) -> None:
        """Read one input. It succeeds, or raises an error of clew."""

    def input(self, seed: int, number: int, examples: list[bytes]) -> bytes:
        """Return input `number` of a seed."""
        chance = random.Random(f"{self.name} {seed} {number}")
        example = chance.choice(examples)
        if chance.random() < 0.01:
            return nested(chance)
        return (
            changed_json(chance, example) if self.is_json and chance.random() < 0.5 else changed_bytes(chance, example)
        )


class _ReaderTarget(Target):
    options: ClassVar[dict[str, Any]] = {}

    def open(self, folder: Path) -> None:
        from clew.data import readers

        readers.find(readers.kind_of(self.file_name))

    def read(self, path: Path) -> None:
        from clew.data import readers

        for table in readers.read(str(path), **self.options):
            for column in table:
                np.asarray(getattr(table[column], "values", table[column])).sum()


def _columns() -> dict[str, Any]:
    lengths = np.array([2, 0, 3, 1] * 5)
    return {"run": np.arange(20), "x": np.arange(30, dtype="f4"), "lengths": lengths}


class Root(_ReaderTarget):
    name, file_name = "root", "events.root"

    def write_examples(self, folder: Path) -> None:
        import awkward as ak
        import uproot

        data = _columns()
        with uproot.recreate(folder / "a.root") as file:
            file["events"] = {"run": data["run"], "x": ak.unflatten(data["x"], data["lengths"])}
        with uproot.recreate(folder / "b.root", compression=None) as file:
            file["events"] = {"run": data["run"], "y": data["run"] * 0.5}


class Hdf5(_ReaderTarget):
    name, file_name = "hdf5", "events.h5"

    def write_examples(self, folder: Path) -> None:
        import h5py

        from clew import Ragged, Table

        data = _columns()
        x = Ragged.from_lengths(data["x"], data["lengths"])
        Table({"run": data["run"], "x": x, "y": x.share(x.values * 2)}, units={"x": "mm"}).save(folder / "a")
        with h5py.File(folder / "b", "w") as file:
            file["run"] = data["run"]
            file.create_dataset("image", data=np.zeros((20, 4, 4)), compression="gzip", chunks=(5, 4, 4))


class Parquet(_ReaderTarget):
    name, file_name = "parquet", "events.parquet"

    def write_examples(self, folder: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        lists = [[float(n)] * (n % 3) for n in range(20)]
        for name, compression in (("a", "snappy"), ("b", "none")):
            pq.write_table(pa.table({"run": np.arange(20), "x": lists}), folder / name, compression=compression)


class Npz(_ReaderTarget):
    name, file_name = "npz", "events.npz"

    def write_examples(self, folder: Path) -> None:
        data = _columns()
        np.savez(folder / "a.npz", run=data["run"], image=np.zeros((20, 2)))
        np.savez_compressed(folder / "b.npz", run=data["run"], y=data["run"] * 0.5)


class Csv(_ReaderTarget):
    name, file_name = "csv", "events.csv"

    def write_examples(self, folder: Path) -> None:
        rows = "".join(f"{n // 3},{n * 0.5},{n}\n" for n in range(30))
        (folder / "a").write_text("event,x,y\n" + rows)


class TrackML(_ReaderTarget):
    """The hits and the truth of an event: two files, joined by a line."""

    name, file_name = "trackml", "event000000001-hits.csv"
    _line = b"=====\n"

    def write_examples(self, folder: Path) -> None:
        hits = [f"{n},{n * 0.5},{-n},{n * 2},8,{n % 4},{n % 7}" for n in range(1, 20)]
        truth = [f"{n},{n // 5},{n * 0.5},{-n},{n * 2},0.1,0.2,0.3,1e-3" for n in range(1, 20)]
        files = (
            ["hit_id,x,y,z,volume_id,layer_id,module_id", *hits],
            ["hit_id,particle_id,tx,ty,tz,tpx,tpy,tpz,weight", *truth],
        )
        texts = ["\n".join(lines) + "\n" for lines in files]
        (folder / "a").write_bytes(self._line.join(text.encode() for text in texts))

    def read(self, path: Path) -> None:
        hits, _, truth = path.read_bytes().partition(self._line)
        path.write_bytes(hits)
        path.with_name("event000000001-truth.csv").write_bytes(truth)
        super().read(path)


class Pickle(_ReaderTarget):
    name, file_name = "pickle", "events.pkl"

    def write_examples(self, folder: Path) -> None:
        import pickle

        (folder / "a").write_bytes(pickle.dumps({"run": np.arange(20), "x": np.arange(20) * 0.5}))


class Yaml(Target):
    name, file_name = "yaml", "settings.yaml"

    def write_examples(self, folder: Path) -> None:
        from clew.core.config import to_yaml
        from clew.settings import load_settings

        data = load_settings("tracking").data
        (folder / "a").write_text(to_yaml({"recipe": "tracking", "train": {"epochs": 3, "optimizer": {"lr": 0.1}}}))
        (folder / "b").write_text(to_yaml({"recipe": "tracking", "prepare": data["prepare"], "train": data["train"]}))

    def read(self, path: Path) -> None:
        from clew.settings import load_settings

        load_settings(str(path))


class Safetensors(Target):
    name, file_name = "safetensors", "best.safetensors"

    def write_examples(self, folder: Path) -> None:
        from clew.training import checkpoint

        checkpoint.save(self._model().state_dict(), folder / "a", facts={"epoch": 1})

    def read(self, path: Path) -> None:
        from clew.training.start_weights import load_weights

        load_weights(self._model(), path)

    def _model(self) -> Any:
        from torch import nn

        return nn.Linear(3, 2)


class Checkpoint(Safetensors):
    name, file_name = "checkpoint", "state.pt"

    def write_examples(self, folder: Path) -> None:
        import torch

        torch.save(self._model().state_dict(), folder / "a")


class Manifest(Target):
    name, file_name, is_json = "manifest", "manifest.json", True

    def write_examples(self, folder: Path) -> None:
        import clew
        from clew.recipes.tracking import Tracking

        events = folder.parent / "events"
        events.mkdir()
        list(Tracking().generate(20, 1, events))
        made = clew.prepare("tracking", input=[str(events)], output=str(folder.parent / "dataset"), workers=1)
        (folder / "a").write_bytes((made.path / "manifest.json").read_bytes())

    def read(self, path: Path) -> None:
        from clew import Dataset

        dataset = Dataset(path.parent)
        repr(dataset.splits)


class Records(Target):
    name, file_name, is_json = "records", "rank-0.jsonl", False

    def write_examples(self, folder: Path) -> None:
        start = {"host": "here", "pid": 1, "ranks": 1, "device": "cpu"}
        lines: list[dict[str, Any]] = [{"seq": 0, "time": 1.5, "kind": "start", **start}]
        lines += [{"seq": n, "time": 1.5 + n, "kind": "step", "step": n, "loss": 1 / n} for n in range(1, 20)]
        lines += [{"seq": 20, "time": 30.0, "kind": "end", "status": "finished", "message": ""}]
        (folder / "a").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def read(self, path: Path) -> None:
        from clew.runs import records

        for record in records.read(path):
            record["seq"]
        for record in records.read_reversed(path, ("start", "end")):
            record["kind"]


class Wire(Target):
    """The frames of a message between master and worker, after its keys were checked."""

    name = "wire"

    def write_examples(self, folder: Path) -> None:
        header = ["update", {"number": 3, "step": 7, "lease": "a"}, ["float32", 4], None]
        (folder / "a").write_bytes(json.dumps(header).encode() + b"\n" + bytes(16))
        (folder / "b").write_bytes(json.dumps(["hello", {"number": None}, None, None]).encode() + b"\n")

    def read(self, path: Path) -> None:
        import zmq

        from clew.errors import DataError
        from clew.training.asynchronous.messaging.frames import parse_frames, requested_number

        header, _, body = path.read_bytes().partition(b"\n")
        try:
            _, fields, _ = parse_frames([zmq.Frame(header), zmq.Frame(body)])
            requested_number(fields)
        except ValueError as error:  # the transport counts it and goes on
            raise DataError("not a message") from error


class Settings(Target):
    """The words of `--set`."""

    name = "settings"

    def write_examples(self, folder: Path) -> None:
        for number, text in enumerate(
            ("train.epochs=3", "train.optimizer={lr: 0.1}", "model.hidden=16", "prepare.split={train: 0.5, val: 0.5}")
        ):
            (folder / str(number)).write_text(text)

    def read(self, path: Path) -> None:
        from clew.settings import load_settings

        load_settings("tracking", [path.read_bytes().decode("utf-8", errors="surrogateescape")])


class CommandLine(Target):
    """Words of the command line. Commands that start servers or generate data are left out."""

    name = "cli"
    _left_out = {"serve", "agent", "demo", "worker", "bench", "login", "generate", "init", "follow", "doctor", "panda"}

    def write_examples(self, folder: Path) -> None:
        (folder / "a").write_text("runs list --json")

    def input(self, seed: int, number: int, examples: list[bytes]) -> bytes:
        from tests.cli import commands

        chance = random.Random(f"{self.name} {seed} {number}")
        choices = [words for words in commands() if not self._left_out & set(words)]
        values = (
            "",
            "-1",
            "1e99",
            "nothing.yaml",
            "../..",
            "tracking",
            "s3://",
            "rucio:",
            "a=b",
            "--help",
            "ü",
        )
        options = ("--workers", "--output", "--dataset", "--set", "--epochs", "--split", "--input", "--json", "--trust")
        more = [chance.choice((*values, *options)) for _ in range(chance.randrange(6))]
        return "\n".join([*chance.choice(choices), *more]).encode()

    def open(self, folder: Path) -> None:
        import os

        os.chdir(folder)

    def read(self, path: Path) -> None:
        from clew.cli import main
        from clew.errors import ConfigError

        out, before = io.StringIO(), (sys.argv, sys.stdout, sys.stderr)
        sys.argv, sys.stdout, sys.stderr = ["clew", *path.read_text().split("\n")], out, out
        try:
            main.run()
        except SystemExit as ended:
            if "This is an error in clew" in out.getvalue() or "Traceback" in out.getvalue():
                raise RuntimeError(" ".join(out.getvalue().split())[:300]) from None
            if ended.code:
                raise ConfigError("refused") from None
        finally:
            sys.argv, sys.stdout, sys.stderr = before


FILE_TARGETS: dict[str, Target] = {
    kind.name: kind()
    for kind in (
        *(Root, Hdf5, Parquet, Npz, Csv, TrackML, Pickle, Yaml, Safetensors, Checkpoint, Manifest, Records, Wire),
        *(Settings, CommandLine),
    )
}
