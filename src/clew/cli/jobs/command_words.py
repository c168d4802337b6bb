"""A command line from the values of its options, for commands that run as jobs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def command_words(verb: Sequence[str], options: Mapping[str, Any]) -> list[str]:
    """The words after `clew` that run a verb with these options. Options at their defaults are left out.

    Args:
        verb: The path of the verb, such as `("tune", "run")`.
        options: Values by the names of the verb's parameters; a parameter without a value is left out.
    """
    from clew.cli.main import command

    group: Any = command()
    for name in verb:
        group = group.commands[name]
    positional: list[str] = []
    named: list[str] = []
    for parameter in group.params:
        value = options.get(parameter.name)
        if value is None or value == parameter.default or value == []:
            continue
        values = [str(each) for each in value] if isinstance(value, (list, tuple)) else [str(value)]
        if parameter.param_type_name == "argument":
            positional += values
        elif parameter.is_flag:
            named.append(parameter.opts[0] if value else parameter.secondary_opts[0])
        else:
            named += [word for each in values for word in (parameter.opts[0], each)]
    return [*verb, *positional, *named]


def call_verb(verb: Callable[..., None], **options: Any) -> None:
    """Call the function of a verb; options that are not given have their defaults."""
    parameters = inspect.signature(verb).parameters.values()
    defaults = {each.name: each.default for each in parameters if each.default is not inspect.Parameter.empty}
    verb(**{**defaults, **options})
