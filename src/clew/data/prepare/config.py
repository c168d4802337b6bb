"""The settings of prepare."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from clew.core.config import Section

KeepRule = Literal["auto", "always", "never"]
"""Whether the result of a stage stays in the cache; `auto` decides from measured times."""
ALL = "all"
"""The name of all stages in `PrepareConfig.keep`."""
SplitName = Annotated[str, Field(pattern=r"^\w[\w.-]*$")]
"""Name of a split. It is the beginning of file names."""
Patterns = tuple[str, ...]
SHARES = {"train": 0.8, "val": 0.1, "test": 0.1}


def _patterns(value: Any) -> Any:
    """Return patterns, or the patterns of each split. A single pattern need not be a list."""
    if isinstance(value, Mapping):
        if not value or not all(value.values()):
            raise ValueError("every split needs files: {train: ['a*.h5'], val: ['b*.h5']}")
        return {name: _patterns(pattern) for name, pattern in value.items()}
    if not isinstance(value, (str, list, tuple)) or not all(isinstance(pattern, str) for pattern in value):
        raise ValueError("expected patterns of files, or patterns for each split: {train: ['a*.h5'], val: ['b*.h5']}")
    return (value,) if isinstance(value, str) else tuple(value)


InputPatterns = Annotated[
    Patterns | dict[SplitName, Patterns],
    BeforeValidator(_patterns, json_schema_input_type=str | Patterns | dict[SplitName, str | Patterns]),
]


def _keep(value: Any) -> Any:
    """Return a list of stages as rules: these stages always, no others."""
    if not isinstance(value, (list, tuple)):
        return value
    return {ALL: "never", **dict.fromkeys(value, "always")}


Keep = Annotated[
    KeepRule | dict[str, KeepRule],
    BeforeValidator(_keep, json_schema_input_type=KeepRule | dict[str, KeepRule] | tuple[str, ...]),
]


class PrepareConfig(Section):
    """Settings of `clew prepare`: what is read, how it is split, where the dataset is written, and which processes do
    the
    work."""

    input: InputPatterns = ()
    """Files, folders, patterns or URLs; `file.root:tree` for a tree; `@files.txt` for a list with one pattern per line.

    A mapping of splits to patterns assigns every file to a split; `split` and `split_by` are not used then.
    """
    output: str = "dataset"
    """Folder or URL of the dataset."""
    workers: Annotated[int, Field(ge=1)] | None = None
    """Number of processes or threads. By default the number of cores that this process may use."""
    executor: str = "auto"
    """`processes`, `threads`, `mpi`, `dask`, or `dask://HOST:PORT`. `auto` is mpi under mpiexec, otherwise processes.
    """
    split: dict[SplitName, Annotated[float, Field(ge=0, le=1)]] | None = None
    """Share of each split. By default train 0.8, val 0.1, test 0.1."""
    split_by: str | None = None
    """What stays together in one split: `event` (the default), `file`, or a column of integers: events with equal
    values."""
    seed: int = 0
    """Seed of the split."""
    shard_mb: Annotated[float, Field(gt=0)] = 256
    """Target size of a shard, in MB."""
    cache: str | None = None
    """Folder of the stage cache. By default `clew` in the user's cache folder, or $CLEW_CACHE."""
    keep: Keep = "auto"
    """Which results stay in the cache: `auto` (those that take longer to compute than to store), `always` or `never`.

    A mapping sets it for some stages: `{all: never, read: auto, standard: always}`. A stage is `read`, `prepare`, the
    kind of a transform (`standard`, or `standard-2` for the second one), or `transforms` for all of them. A list names
    the stages that always stay; no others do.
    """

    @field_validator("split")
    @classmethod
    def _check_shares(cls, split: dict[str, float] | None) -> dict[str, float] | None:
        if split is not None and abs(sum(split.values()) - 1) > 1e-9:
            raise ValueError(f"the shares must add up to 1, they add up to {sum(split.values()):g}")
        return split

    @model_validator(mode="after")
    def _check_one_split_setting(self) -> Self:
        set_names = [name for name in ("split", "split_by") if getattr(self, name) is not None]
        if isinstance(self.input, dict) and set_names:
            raise ValueError(f"input assigns files to splits; leave out {' and '.join(set_names)}, or set to null")
        return self

    def keep_rule(self, *names: str) -> KeepRule:
        """Return the rule for a stage.

        Args:
            names: The names of the stage in `keep`, the most specific first.
        """
        rules = {ALL: self.keep} if isinstance(self.keep, str) else self.keep
        return next((rules[name] for name in (*names, ALL) if name in rules), "auto")

    @property
    def shares(self) -> dict[str, float]:
        """The share of each split, if files do not decide."""
        return SHARES if self.split is None else self.split

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits, in order."""
        return tuple(self.input if isinstance(self.input, dict) else self.shares)
