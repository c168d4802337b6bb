"""Settings of prepare."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from clew.config import Section


class PrepareConfig(Section):
    """What is read, how it is split, where it goes."""

    input: tuple[str, ...] = ()
    """Files, folders or globs."""
    output: str = "dataset"
    workers: Annotated[int, Field(ge=1)] | None = None
    """Processes; default: as many as this process may use cores."""
    split: dict[str, Annotated[float, Field(ge=0, le=1)]] = {"train": 0.8, "val": 0.1, "test": 0.1}
    """Share of each split. Which events go where depends on their file's content and their place in it alone."""
    seed: int = 0
    """Another seed, another split."""
    shard_mb: Annotated[float, Field(gt=0)] = 256

    @field_validator("split")
    @classmethod
    def _whole(cls, split: dict[str, float]) -> dict[str, float]:
        if not split or abs(sum(split.values()) - 1) > 1e-9:
            raise ValueError(f"the shares must add up to 1, they add up to {sum(split.values()):g}")
        return split
