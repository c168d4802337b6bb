"""What `self.trainer` of a LightningModule gives while clew trains it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clew.errors import RecipeError

if TYPE_CHECKING:
    from clew.models.lightning.session import LightningSession

_FACTS: dict[str, Any] = {
    "logger": None,
    "loggers": [],
    "callbacks": [],
    "sanity_checking": False,
    "predicting": False,
    "fast_dev_run": False,
    "gradient_clip_val": None,
    "gradient_clip_algorithm": None,
    "num_nodes": 1,
    "local_rank": 0,
}
"""Attributes of a Trainer that are always the same."""


class UnavailableError(RecipeError, AttributeError):
    """A LightningModule uses a part of Lightning's Trainer that clew does not have."""


class TrainerFacts:
    """The facts about a training that Lightning's Trainer gives. Everything else is refused by name."""

    def __init__(self, session: LightningSession) -> None:
        object.__setattr__(self, "_session", session)

    def __getattr__(self, name: str) -> Any:
        """Return a fact."""
        if name.startswith("__"):
            raise AttributeError(name)
        session: LightningSession = object.__getattribute__(self, "_session")
        known = {**_FACTS, **session.facts()}
        if name in known:
            return known[name]
        raise UnavailableError(f"self.trainer.{name} needs Lightning's Trainer, which clew replaces; remove it")

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse a change."""
        raise UnavailableError(f"self.trainer.{name} cannot be set: clew has no Trainer of Lightning; remove it")

    def __reduce__(self) -> tuple[Any, ...]:
        return TrainerFacts, (object.__getattribute__(self, "_session"),)
