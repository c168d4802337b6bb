"""The steps of a user with a model in a store: commands, each in a separate process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

SMALL = ("--set", "model.hidden=16", "--set", "train.epochs=1", "--set", "train.trace=false")


@dataclass(frozen=True)
class User:
    """A user with a shell, a folder and an environment."""

    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    before: Sequence[str] = ()
    """The prefix of every command, for instance `nsenter ...` to enter another network."""

    def clew(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [*self.before, str(Path(sys.executable).with_name("clew")), *arguments]
        self.folder.mkdir(exist_ok=True)
        environment = {**os.environ, "CLEW_CACHE": str(self.folder / "cache"), **self.environment}
        return subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=400, check=False
        )

    def succeeds(self, *arguments: str) -> str:
        done = self.clew(*arguments)
        assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def fails(self, *arguments: str) -> str:
        """One line, and exit code 2."""
        done = self.clew(*arguments)
        assert done.returncode == 2, f"{arguments}\n{done.stdout}\n{done.stderr}"
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        assert len(lines) == 1, done.stderr
        return lines[0]


def whole_way(one: User, other: User, events: Path, base: str, models: str) -> None:
    """One user puts events into a store, prepares from it into it, trains from it and stores the model; another, on
    a simulated other machine, finds the model, downloads it and evaluates it on the dataset in the store.
    """
    one.succeeds("data", "put", str(events), f"{base}events")
    one.succeeds("prepare", "tracking", "--input", f"{base}events", "--output", f"{base}dataset", "--workers", "1")
    again = one.succeeds("prepare", "tracking", "--input", f"{base}events", "--output", f"{base}dataset")
    assert "up to date" in again
    output = one.succeeds(
        "train", "tracking", "--dataset", f"{base}dataset", "--output", "runs/first", *SMALL, "--set",
        f"train.store.to={models}",
    )  # fmt: skip
    assert "not stored" not in output
    matches = json.loads(
        other.succeeds("model", "find", models.partition("?")[0], "--where", "val_loss < 100", "--json")
    )
    (model,) = matches
    assert model["recipe"] == "tracking" and len(model["config_hash"]) == 64
    assert (
        json.loads(other.succeeds("model", "find", models.partition("?")[0], "--where", "val_loss < 0", "--json")) == []
    )
    other.succeeds("model", "get", model["location"], "--output", "model")
    for name in ("checkpoints/best.safetensors", "config.yaml", "dataset.json", "report.html"):
        assert (other.folder / "model" / name).read_bytes() == (one.folder / "runs" / "first" / name).read_bytes(), name
    assert "track" in other.succeeds("evaluate", "model", "--dataset", f"{base}dataset")
