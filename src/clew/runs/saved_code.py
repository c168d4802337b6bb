"""The source code that a run was trained with: files in its folder `code`, and what differs from other code."""

from __future__ import annotations

import ast
import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from clew.core.files import write_text
from clew.core.private_modules import SAVED_CODE
from clew.runs.folder import Run

SECOND = "second-folder"
"""Folder of the files of a loss, if the files of the model have the same names."""
_MAX_CHANGES = 5


class CodeWarning(UserWarning):
    """The code of a run differs from today's code."""


@dataclass(frozen=True)
class SavedCode:
    """The source code of a run.

    Args:
        recipe: The recipe in the saved files, as `my_recipe.py:MyRecipe`; empty if it cannot be loaded from them.
        files: The files by path, relative to the folder: file of the original and the hash of its content.
        shipped: Hashes of the modules of clew's own recipes that the run used. Their source is not saved.
        version: The version of clew.
    """

    recipe: str = ""
    files: dict[str, tuple[str, str]] = field(default_factory=dict)
    shipped: dict[str, str] = field(default_factory=dict)
    version: str = ""

    def save(self, folder: Path, texts: Mapping[str, bytes]) -> None:
        """Write files and index. The index is written last, so a folder with an index is complete."""
        for name, content in texts.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        folder.mkdir(exist_ok=True)
        text = json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"
        if (folder / SECOND).is_dir():
            write_text(folder / SECOND / SAVED_CODE, text)
        write_text(folder / SAVED_CODE, text)

    @classmethod
    def of_run(cls, run: Run) -> SavedCode | None:
        """Return the code of a run, or None if the run has none: older runs do not."""
        try:
            return cls(**json.loads((run.code_folder / SAVED_CODE).read_text()))
        except (OSError, ValueError, TypeError):
            return None


def saved_texts(run: Run) -> dict[str, str]:
    """Return the saved source files of a run by path; empty if it has none."""
    code = SavedCode.of_run(run)
    names = [] if code is None else [name for name in code.files if name.endswith(".py")]
    return {name: (run.code_folder / name).read_text(encoding="utf-8", errors="replace") for name in names}


def changes(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Return what differs between two versions of source files, as short lines: functions and classes by name.

    Comments, docstrings and layout do not count.

    Example:
        >>> changes({"a.py": "def f():\\n    return 1"}, {"a.py": "def f():\\n    return 2"})
        ['a.py: f']
    """
    lines = []
    for name in sorted(old.keys() | new.keys()):
        if name not in new:
            lines.append(f"{name} is missing")
        elif name not in old:
            lines.append(f"{name} is new")
        else:
            parts = _changed_parts(old[name], new[name])
            lines += [f"{name}: {', '.join(parts)}"] if parts else []
    return lines


def short(lines: Iterable[str]) -> str:
    """Return some lines of `changes` as one line."""
    all_lines = list(lines)
    more = f" and {len(all_lines) - _MAX_CHANGES} more" if len(all_lines) > _MAX_CHANGES else ""
    return "; ".join(all_lines[:_MAX_CHANGES]) + more


def code_differences(first: Run, second: Run) -> list[str]:
    """Return a unified diff of the saved code of two runs, and the modules of clew that differ; empty if none do."""
    texts = saved_texts(first), saved_texts(second)
    lines: list[str] = []
    for name in sorted(texts[0].keys() | texts[1].keys()):
        old, new = (text.get(name, "").splitlines() for text in texts)
        lines += difflib.unified_diff(old, new, f"{first.name}/{name}", f"{second.name}/{name}", lineterm="", n=2)
    codes = [SavedCode.of_run(run) or SavedCode() for run in (first, second)]
    return lines + [
        f"{module} differs: {codes[0].version} and {codes[1].version}" for module in shipped_changes(*codes)
    ]


def shipped_changes(old: SavedCode, new: SavedCode) -> list[str]:
    """Return the modules of clew that both runs used in different versions."""
    return [name for name in sorted(old.shipped) if new.shipped.get(name, old.shipped[name]) != old.shipped[name]]


def _changed_parts(old: str, new: str) -> list[str]:
    if old == new:
        return []
    parts = _parts(old), _parts(new)
    if parts[0] is None or parts[1] is None:
        return ["changed"]
    names = dict.fromkeys([*parts[1], *parts[0]])
    return [name for name in names if parts[0].get(name) != parts[1].get(name)]


def _parts(text: str) -> dict[str, str] | None:
    """Return the functions, classes and methods of a file by name, without docstrings; None if it is not Python."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return None
    parts: dict[str, str] = {}
    rest: list[str] = []
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            parts[node.name] = _plain(node)
        elif isinstance(node, ast.ClassDef):
            methods = [item for item in node.body if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef))]
            parts |= {f"{node.name}.{method.name}": _plain(method) for method in methods}
            node.body = [item for item in node.body if item not in methods]
            parts[node.name] = _plain(node)
        elif not _is_text(node):
            rest.append(ast.unparse(node))
    parts["the rest of the file"] = "\n".join(rest)
    return parts


def _plain(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> str:
    for item in ast.walk(node):
        if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            item.body = [each for each in item.body if not _is_text(each)] or [ast.Pass()]
    return ast.unparse(node)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
