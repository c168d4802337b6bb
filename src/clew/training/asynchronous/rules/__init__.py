"""The rules of asynchronous training: what a worker sends, and how the master changes the central weights with it.

Each rule is one file here, a subclass of `Rule` (`base.py`). It holds everything about the rule: the settings it
accepts and their defaults, the worker side (what is sent and what is made of the answer), and the master side (how an
update changes the central weights). Read `base.py`, `worker_side.py`, then any rule; `downpour.py` is the shortest.

To add a rule, write its file and add one line to `RULES`. If the rule has settings of its own, declare them as a
`Section` in its file and add that class to the bases of `AsynchronousConfig` (`clew.training.config`). Another package
registers its rule as an entry point of the group `clew.rules`; its settings are `Rule.Parameters`.

The command line checks settings without torch. Therefore no module of this package imports torch at its top level.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clew.core.entry_points import installed_entry_points, load_entry_point
from clew.errors import ConfigError
from clew.training.asynchronous.rules.base import Rule
from clew.training.asynchronous.rules.worker_side import DifferenceSender, GradientSender, PushWorkerSide, WorkerSide

if TYPE_CHECKING:
    from clew.training.config import TrainConfig

__all__ = ["DifferenceSender", "GradientSender", "PushWorkerSide", "Rule", "WorkerSide", "make_rule", "rule_class"]

ENTRY_POINTS = "clew.rules"
"""The group of entry points with which other packages add rules."""
RULES = {
    "downpour": "clew.training.asynchronous.rules.downpour:Downpour",
    "easgd": "clew.training.asynchronous.rules.easgd:Easgd",
    "gem": "clew.training.asynchronous.rules.gem:Gem",
    "diloco": "clew.training.asynchronous.rules.diloco:DiLoCo",
    "backup": "clew.training.asynchronous.rules.backup:Backup",
}
"""The values of `train.strategy` that train asynchronously, and the class of each as `module:class`.

`clew.training.strategy_table` makes the traits of the strategies from these classes, so the check of the settings and
the training read the same table.
"""


def rule_class(name: str) -> type[Rule]:
    """Return the class of a rule by its name in `RULES`, or of an entry point of another package.

    Raises:
        ConfigError: There is no such rule, it cannot be imported, or it is not a `Rule`.
    """
    location = RULES.get(name) or installed_entry_points(ENTRY_POINTS).get(name)
    if location is None:
        raise ConfigError(f"no asynchronous rule '{name}'")
    loaded = load_entry_point("rule", name, location)
    if not (isinstance(loaded, type) and issubclass(loaded, Rule)):
        raise ConfigError(f"rule '{name}' ({location}) is not a subclass of clew.rules.Rule")
    return loaded


def make_rule(config: TrainConfig) -> Rule:
    """Return the rule that `config.strategy` names, with these settings."""
    return rule_class(config.strategy)(config)
