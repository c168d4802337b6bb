"""The page of commands: every command and every option, from the command line itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer
from markdown_text import code, escaped, fenced, table

from clew.cli.main import command


def commands_markdown() -> str:
    """Return all commands as Markdown, with headings of the second and third level."""
    root = command()
    return "\n\n".join(part for name in root.commands for part in _command(root.commands[name], f"clew {name}", 2))


def _command(each: Any, name: str, level: int) -> Iterator[str]:
    yield f"{'#' * level} {name}"
    context = typer.Context(each, info_name=name)
    yield from _help(each.help or "")
    inner = getattr(each, "commands", None)
    if inner:
        for verb in inner:
            yield from _command(inner[verb], f"{name} {verb}", level + 1)
        return
    yield fenced(each.get_usage(context).removeprefix("Usage: "))
    yield from _parameters(each, context)


def _help(text: str) -> Iterator[str]:
    """Return the paragraphs of a help text. Those after a backspace are shown as they are, without their heading."""
    for paragraph in text.replace("\f", "\n").split("\n\n"):
        if not paragraph.startswith("\b"):
            if paragraph.strip():
                yield escaped(paragraph)
            continue
        lines = paragraph.splitlines()[1:]
        if lines and re.fullmatch(r"Examples?:", lines[0].strip()):
            lines = lines[1:]
        indent = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
        yield fenced("\n".join(line[indent:] for line in lines), "sh")


def _parameters(each: Any, context: Any) -> Iterator[str]:
    arguments = [one for one in each.params if one.param_type_name == "argument"]
    options = [one for one in each.params if one.param_type_name == "option" and not one.hidden]
    if arguments:
        rows = [[code(one.name), escaped(getattr(one, "help", None) or "")] for one in arguments]
        yield table(["argument", "meaning"], rows)
    panels: dict[str, list[Any]] = {}
    for one in options:
        panels.setdefault(getattr(one, "rich_help_panel", None) or "", []).append(one)
    for panel, members in panels.items():
        if panel:
            yield f"*{escaped(panel)}*"
        yield table(["option", "value", "meaning"], [_option(one, context) for one in members])


def _option(one: Any, context: Any) -> list[str]:
    record = one.get_help_record(context) or ("", one.help or "")
    names = "/".join([*one.opts, *one.secondary_opts])
    flags = ", ".join(code(name) for name in [*one.opts, *one.secondary_opts])
    value = re.sub(r"^[-\w, /]*?(?:--?[\w-]+)(?:\s|$)", "", record[0]) if not one.is_flag else ""
    meaning = one.help or ""
    default = one.default if not callable(one.default) else None
    if default not in (None, False, (), [], "") and not one.is_flag and str(default) not in meaning:
        meaning += f" Default: {default}."
    assert names
    return [flags, code(value.strip()), escaped(meaning)]
