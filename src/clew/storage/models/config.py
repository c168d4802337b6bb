"""What a run keeps in a store when it ends."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Field, field_validator

from clew.core.config import Section
from clew.storage import mask_secrets

Part = Literal["model", "plots", "report", "records", "checkpoints", "all"]
PARTS: tuple[str, ...] = get_args(Part)


class StoreConfig(Section):
    """Where and what."""

    to: Annotated[str, Field(min_length=1)]
    """A folder, `s3://bucket/models`, `root://host//path` or `rucio:scope` (`rucio:scope:prefix?rse=SITE`): the model
    gets a place of its own there."""
    what: tuple[Part, ...] = ("model", "plots", "report")
    """Besides the model, which is always kept: plots, the report, records of the training, states to go on from."""
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]*$")] | None = None
    """Default: that of the run and the beginning of the weights' hash."""

    @field_validator("to")
    @classmethod
    def _no_secrets(cls, to: str) -> str:
        if mask_secrets(to) != to:
            raise ValueError("has a password or token in it, and settings are written down; use the environment")
        return to
