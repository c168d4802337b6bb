"""Replaces the code of functions in a running process, and finds out which functions are called."""

from __future__ import annotations

import ast
import builtins
import gc
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from types import CodeType, FunctionType

_REPORT = "__report_call__"


class LoadedFunctions:
    """The functions of some files that exist in this process and in its forks."""

    def __init__(self, paths: Collection[str]) -> None:
        self._functions: dict[str, list[FunctionType]] = {path: [] for path in paths}
        for function in gc.get_objects():
            if type(function) is FunctionType and function.__code__.co_filename in self._functions:
                self._functions[function.__code__.co_filename].append(function)
        gc.freeze()  # a collection in a fork would copy the memory of all objects

    def replace_code(self, path: str, before: str, after: str) -> bool:
        """Give every function of a file the code that the changed text has. False if it is not possible."""
        places = {(code.co_qualname, code.co_firstlineno): key for key, code in _codes(compile(before, path, "exec"))}
        try:
            changed = dict(_codes(compile(after, path, "exec")))
            for function in self._functions[path]:
                key = places.get((function.__code__.co_qualname, function.__code__.co_firstlineno))
                if key in changed:
                    function.__code__ = _with_variables_of(function.__code__, changed[key])
        except (SyntaxError, ValueError):
            return False
        return True

    def report_calls(self, path: str, text: str, report: Callable[[str], object]) -> None:
        """Let every function of a file report `PATH:FIRST-LAST`, with its lines, whenever it is called."""
        setattr(builtins, _REPORT, report)
        tree = ast.parse(text)
        for function in functions(tree):
            function.body.insert(0, ast.parse(f"{_REPORT}({path + ':' + lines_of(function)!r})").body[0])
        self.replace_code(path, text, ast.unparse(tree))


def _with_variables_of(old: CodeType, new: CodeType) -> CodeType:
    """A function keeps its variables of outer functions, also if its code no longer uses them (`super()`)."""
    return new if new.co_freevars else new.replace(co_freevars=old.co_freevars)


def functions(tree: ast.Module) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """All functions and methods of a module."""
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """The first and the last line of a function."""
    return f"{function.lineno}-{function.end_lineno}"


def _codes(module: CodeType) -> Iterator[tuple[tuple[str, int], CodeType]]:
    """The code of all functions, by name and number: a property has several functions of one name."""
    seen: Counter[str] = Counter()
    waiting = [module]
    while waiting:
        code = waiting.pop(0)
        yield (code.co_qualname, seen[code.co_qualname]), code
        seen[code.co_qualname] += 1
        waiting.extend(part for part in code.co_consts if isinstance(part, CodeType))
