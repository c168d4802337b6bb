"""Commands that are imported when they are used, so that `clew --help` and each command start fast."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


@dataclass(frozen=True)
class LazyCommand:
    """Where a command is, and its line in the list of commands."""

    place: str
    """`module:name` below `clew.cli`: a function, or a `typer.Typer` with several commands."""
    summary: str
    """The first paragraph of its help. A test compares the two."""

    def load(self, name: str) -> Any:
        """Import the command and return it as a click command."""
        module, _, attribute = self.place.partition(":")
        loaded = getattr(importlib.import_module(f"clew.cli.{module}"), attribute)
        if isinstance(loaded, typer.Typer):
            command: Any = typer.main.get_group(loaded)
        else:
            single = typer.Typer(rich_markup_mode="rich", add_completion=False, pretty_exceptions_enable=False)
            single.command(name)(loaded)
            command = typer.main.get_command(single)
        command.name = name
        _hide_types_of_flags(command)
        return command


def _hide_types_of_flags(command: Any) -> None:
    """Remove `<bool>` from the help of options that take no value."""
    for option in (*command.params, command.get_help_option(typer.Context(command))):
        if getattr(option, "is_flag", False):
            option.metavar = ""
    if not isinstance(command, LazyGroup):
        for each in getattr(command, "commands", {}).values():
            _hide_types_of_flags(each)


class LazyCommands(MutableMapping[str, Any]):
    """Commands by name. An entry is imported when it is read."""

    def __init__(self, commands: Mapping[str, LazyCommand]) -> None:
        """Take the commands in the order in which help lists them."""
        self._commands = dict(commands)
        self._loaded: dict[str, Any] = {}
        self.summaries_only = False
        """Whether to return commands that have a summary and nothing else, for the list of commands."""

    def __getitem__(self, name: str) -> Any:
        if self.summaries_only:
            return TyperCommand(name, help=self._commands[name].summary)
        if name not in self._loaded:
            self._loaded[name] = self._commands[name].load(name)
        return self._loaded[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._commands[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._commands)

    def __len__(self) -> int:
        return len(self._commands)

    def __contains__(self, name: object) -> bool:  # without importing it
        return name in self._commands


class LazyGroup(TyperGroup):
    """A group of lazy commands. A subclass has them in `lazy`."""

    lazy: Mapping[str, LazyCommand] = {}

    def __init__(self, **options: Any) -> None:
        """Take typer's options."""
        super().__init__(**options)
        self.commands: LazyCommands = LazyCommands(self.lazy)
        _hide_types_of_flags(self)

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of all commands."""
        return list(self.commands)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help with the summaries of all commands, without importing them."""
        self.commands.summaries_only = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self.commands.summaries_only = False
