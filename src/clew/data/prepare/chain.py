"""The chain of stages of a preparation: reading, one stage per transform, and `Recipe.prepare`.

The key of a stage consists of the content of the file, its own code and settings, and the key of the stage before it. A
change of one stage changes its key and the following ones, and no others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from clew.data.prepare.config import ALL, KeepRule, PrepareConfig
from clew.data.prepare.content_keys import Parts, key_of
from clew.data.transforms import Transform
from clew.errors import ConfigError, nearest

READ, TRANSFORMS, PREPARE = "read", "transforms", "prepare"
_FORMAT = 2
"""Part of every key. A cache of an older version of clew has other keys, so it is never misread."""


@dataclass(frozen=True)
class Stage:
    """One stage: what it depends on, and whether its result is stored."""

    name: str
    """`read`, `prepare`, or the kind of a transform, with a number from the second one of a kind."""
    group: str
    """`read`, `transforms` or `prepare`: the folder of its results in the cache."""
    parts: Parts
    """Its own code and settings."""
    digest: str
    """The hash of the parts."""
    keep: KeepRule
    transform: Transform | None = None


@dataclass(frozen=True)
class StageChain:
    """The stages in order: `read`, the transforms, `prepare`."""

    stages: tuple[Stage, ...]

    def keys(self, sha256: str, piece: int) -> list[str]:
        """Return the key of every stage.

        Args:
            sha256: The hash of the content of the file.
            piece: The number of the piece in the file.
        """
        keys, key = [], key_of([_FORMAT, sha256, piece])
        for stage in self.stages:
            key = key_of([key, stage.digest])
            keys.append(key)
        return keys

    @property
    def events(self) -> StageChain:
        """The chain without its last stage: it ends with transformed events."""
        return replace(self, stages=self.stages[:-1])


def stage_chain(
    read: Parts, transforms: Sequence[tuple[Transform, Parts]], prepare: Parts, config: PrepareConfig
) -> StageChain:
    """Return the chain of a preparation.

    Args:
        read: What reading depends on.
        transforms: The transforms, and what each depends on.
        prepare: What `Recipe.prepare` depends on.
        config: The settings, which say what is stored.
    """
    names = _transform_names([transform for transform, _ in transforms])
    stages = [_stage(READ, READ, read, config)]
    for name, (transform, parts) in zip(names, transforms, strict=True):
        stages.append(replace(_stage(name, TRANSFORMS, parts, config), transform=transform))
    return StageChain((*stages, _stage(PREPARE, PREPARE, prepare, config)))


def check_keep(config: PrepareConfig, transforms: Sequence[Transform]) -> None:
    """Check that the stages that `keep` names exist.

    Raises:
        ConfigError: there is no such stage.
    """
    stages = {ALL, READ, TRANSFORMS, PREPARE, *_transform_names(transforms)}
    for name in config.keep if isinstance(config.keep, dict) else ():
        if name not in stages:
            raise ConfigError(f"prepare.keep: no stage '{name}'{nearest(name, stages)}")


def _transform_names(transforms: Sequence[Transform]) -> list[str]:
    """Return the names of the stages of transforms: their kinds, with a number from the second one of a kind."""
    kinds, names = Counter([ALL, READ, TRANSFORMS, PREPARE]), []  # a transform may have one of these kinds
    for transform in transforms:
        kind = getattr(transform, "kind", type(transform).__name__)
        kinds[kind] += 1
        names.append(kind if kinds[kind] == 1 else f"{kind}-{kinds[kind]}")
    return names


def _stage(name: str, group: str, parts: Parts, config: PrepareConfig) -> Stage:
    return Stage(name=name, group=group, parts=parts, digest=key_of(parts), keep=config.keep_rule(name, group))
