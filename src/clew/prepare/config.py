"""Settings of prepare."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from clew.config import Section

Stage = Literal["read", "transforms", "prepare"]


class PrepareConfig(Section):
    """What is read, how it is split, where it goes, and who does the work."""

    input: tuple[str, ...] = ()
    """Files, folders, globs or URLs; `file.root:tree` for a tree; `@files.txt` for a list, a pattern a line."""
    output: str = "dataset"
    workers: Annotated[int, Field(ge=1)] | None = None
    """Processes or threads; default: as many as this process may use cores."""
    executor: str = "auto"
    """processes, threads, mpi, dask, or dask://HOST:PORT; auto: mpi under mpiexec, else processes."""
    split: dict[str, Annotated[float, Field(ge=0, le=1)]] = {"train": 0.8, "val": 0.1, "test": 0.1}
    """Share of each split."""
    split_by: str = "event"
    """What stays together: `event`, `file`, or a column of integers whose equal values do."""
    seed: int = 0
    """Another seed, another split."""
    shard_mb: Annotated[float, Field(gt=0)] = 256
    cache: str | None = None
    """Folder of the stage cache; default: `clew` in the user's cache folder, or $CLEW_CACHE."""
    keep: tuple[Stage, ...] = ("read", "transforms", "prepare")
    """Stages whose results stay in the cache. Without `prepare`, finished pieces go as soon as the dataset is there."""

    @field_validator("split")
    @classmethod
    def _whole(cls, split: dict[str, float]) -> dict[str, float]:
        if not split or abs(sum(split.values()) - 1) > 1e-9:
            raise ValueError(f"the shares must add up to 1, they add up to {sum(split.values()):g}")
        return split
