"""Settings of `train.store`: what a run writes to a store when it ends."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Field, field_validator

from clew.core.config import Section
from clew.storage import mask_secrets

Part = Literal["model", "plots", "report", "records", "checkpoints", "all"]
PARTS: tuple[str, ...] = get_args(Part)


class StoreConfig(Section):
    """Target and contents of a stored model."""

    to: Annotated[str, Field(min_length=1)]
    """A folder, `s3://bucket/models`, `root://host//path` or `rucio:scope` (`rucio:scope:prefix?rse=SITE`). The model
    becomes a folder in it."""
    what: tuple[Part, ...] = ("model", "plots", "report")
    """What to store besides the model: plots, the report, records of the training, checkpoints."""
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]*$")] | None = None
    """Name of the folder. Default: the name of the run and the first digits of the weights' hash."""

    @field_validator("to")
    @classmethod
    def _no_secrets(cls, to: str) -> str:
        if mask_secrets(to) != to:
            raise ValueError("contains a password or token, and settings are saved with the run; use the environment")
        return to
