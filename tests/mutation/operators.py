"""Small faults that can be planted in any module: a comparison, an operator, a number or a condition is changed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

_COMPARISONS: dict[type[ast.cmpop], str] = dict(
    zip(
        (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn),
        ("<=", "<", ">=", ">", "!=", "==", "is not", "is", "not in", "in"),
        strict=True,
    )
)
_ARITHMETIC: dict[type[ast.operator], str] = dict(
    zip(
        (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.BitAnd, ast.BitOr),
        ("-", "+", "/", "*", "*", "*", "*", "|", "&"),
        strict=True,
    )
)


@dataclass(frozen=True)
class Mutant:
    """A part of a source file, and what it is replaced by."""

    line: int
    start: int
    end: int
    """Positions in the bytes of the text."""
    before: str
    after: str

    def apply(self, text: str) -> str:
        """The whole text with the fault."""
        data = text.encode()
        return (data[: self.start] + self.after.encode() + data[self.end :]).decode()

    def __str__(self) -> str:
        return f"{self.line}: {' '.join(self.before.split())} -> {' '.join(self.after.split())}"


def mutants(text: str) -> list[Mutant]:
    """Every fault that can be planted in the code of functions and methods, in the order of the file."""
    tree = ast.parse(text)
    lines = text.encode().splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    found: list[Mutant] = []
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for node, after in _changes(function):
            assert node.end_lineno is not None and node.end_col_offset is not None
            start = starts[node.lineno - 1] + node.col_offset
            end = starts[node.end_lineno - 1] + node.end_col_offset
            found.append(Mutant(node.lineno, start, end, text.encode()[start:end].decode(), after))
    return sorted(set(found), key=lambda mutant: (mutant.start, mutant.end, mutant.after))


def _changes(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """What to replace within a function, and by what. Messages of errors, assertions and annotations stay."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Raise | ast.FunctionDef | ast.AsyncFunctionDef | ast.JoinedStr | ast.Assert):
            continue
        if isinstance(node, ast.keyword) and node.arg == "strict":
            continue  # of `zip`: like an assertion, it is about our own mistakes
        if isinstance(node, ast.AnnAssign):
            waiting.extend([node.value] if node.value else [])
            continue
        yield from _change(node)
        waiting.extend(ast.iter_child_nodes(node))


def _change(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    match node:
        case ast.Compare(ops=[operator], left=left, comparators=[right]):
            yield node, f"{_in(left)} {_COMPARISONS[type(operator)]} {_in(right)}"
        case ast.BinOp(op=operator, left=left, right=right) if type(operator) in _ARITHMETIC and not _is_text(node):
            yield node, f"{_in(left)} {_ARITHMETIC[type(operator)]} {_in(right)}"
        case ast.AugAssign(op=operator, target=target, value=value) if type(operator) in _ARITHMETIC:
            yield node, f"{ast.unparse(target)} {_ARITHMETIC[type(operator)]}= {ast.unparse(value)}"
        case ast.BoolOp(op=operator, values=values):
            yield node, "(" + (" or " if isinstance(operator, ast.And) else " and ").join(map(_in, values)) + ")"
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield node, _in(operand)
        case ast.Constant(value=bool(value)):
            yield node, str(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield node, repr(value + 1)
        case ast.IfExp(test=test, body=body, orelse=other):
            yield node, f"({_in(other)} if {_in(test)} else {_in(body)})"
        case ast.If(test=ast.Name() | ast.Attribute() | ast.Call() as test):
            yield test, f"(not {_in(test)})"
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield node, "return None"
        case ast.Expr(value=ast.Call()):
            yield node, "pass"
        case ast.Break():
            yield node, "continue"
        case ast.Continue():
            yield node, "break"


def _in(node: ast.expr) -> str:
    """The text of an operand, with parentheses where it needs them."""
    text = ast.unparse(node)
    return text if isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Constant | ast.Subscript) else f"({text})"


def _is_text(node: ast.BinOp) -> bool:
    return any(
        isinstance(side, ast.JoinedStr) or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        for side in (node.left, node.right)
    )
