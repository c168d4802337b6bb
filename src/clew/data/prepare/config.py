"""Settings of prepare."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from clew.core.config import Section

Stage = Literal["read", "transforms", "prepare"]
Name = Annotated[str, Field(pattern=r"^\w[\w.-]*$")]
"""A split's: it begins the names of files."""
Patterns = tuple[str, ...]
SHARES = {"train": 0.8, "val": 0.1, "test": 0.1}


def _patterns(given: Any) -> Any:
    """Patterns, or those of each split; one alone needs no list."""
    if isinstance(given, Mapping):
        if not given or not all(given.values()):
            raise ValueError("every split needs files: {train: ['a*.h5'], val: ['b*.h5']}")
        return {name: _patterns(each) for name, each in given.items()}
    if not isinstance(given, (str, list, tuple)) or not all(isinstance(each, str) for each in given):
        raise ValueError("give patterns of files, or for each split its patterns: {train: ['a*.h5'], val: ['b*.h5']}")
    return (given,) if isinstance(given, str) else tuple(given)


Inputs = Annotated[
    Patterns | dict[Name, Patterns],
    BeforeValidator(_patterns, json_schema_input_type=str | Patterns | dict[Name, str | Patterns]),
]


class PrepareConfig(Section):
    """What is read, how it is split, where it goes, and who does the work."""

    input: Inputs = ()
    """Files, folders, globs or URLs; `file.root:tree` for a tree; `@files.txt` for a list, a pattern a line.

    A mapping of splits to such patterns says where every file goes, in place of `split` and `split_by`."""
    output: str = "dataset"
    workers: Annotated[int, Field(ge=1)] | None = None
    """Processes or threads; default: as many as this process may use cores."""
    executor: str = "auto"
    """processes, threads, mpi, dask, or dask://HOST:PORT; auto: mpi under mpiexec, else processes."""
    split: dict[Name, Annotated[float, Field(ge=0, le=1)]] | None = None
    """Share of each split; default: train 0.8, val 0.1, test 0.1."""
    split_by: str | None = None
    """What stays together: `event` (the default), `file`, or a column of integers whose equal values do."""
    seed: int = 0
    """Another seed, another split."""
    shard_mb: Annotated[float, Field(gt=0)] = 256
    cache: str | None = None
    """Folder of the stage cache; default: `clew` in the user's cache folder, or $CLEW_CACHE."""
    keep: tuple[Stage, ...] = ("read", "transforms", "prepare")
    """Stages whose results stay in the cache. Without `prepare`, finished pieces go as soon as the dataset is there."""

    @field_validator("split")
    @classmethod
    def _whole(cls, split: dict[str, float] | None) -> dict[str, float] | None:
        if split is not None and abs(sum(split.values()) - 1) > 1e-9:
            raise ValueError(f"the shares must add up to 1, they add up to {sum(split.values()):g}")
        return split

    @model_validator(mode="after")
    def _split_once(self) -> Self:
        given = [name for name in ("split", "split_by") if getattr(self, name) is not None]
        if isinstance(self.input, dict) and given:
            raise ValueError(f"input puts files in splits; leave out {' and '.join(given)}, or set to null")
        return self

    @property
    def shares(self) -> dict[str, float]:
        """What part of the events goes to each split, where files do not decide."""
        return SHARES if self.split is None else self.split

    @property
    def splits(self) -> tuple[str, ...]:
        """Their names, in order."""
        return tuple(self.input if isinstance(self.input, dict) else self.shares)
