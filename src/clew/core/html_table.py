"""Objects as small HTML tables, for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def html_table(title: str, rows: Iterable[Sequence[str]], *, header: Sequence[str] = (), above: str = "") -> str:
    """Return a title and a table as HTML.

    Args:
        title: Text above the table.
        rows: The cells of each row as plain text.
        header: The names of the columns.
        above: HTML between title and table.

    Example:
        >>> html_table("run", [("state", "finished")])
        '<div><b>run</b><table><tr><td>state</td><td>finished</td></tr></table></div>'
    """
    head = f"<tr>{''.join(f'<th>{escape(cell)}</th>' for cell in header)}</tr>" if header else ""
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<div><b>{escape(title)}</b>{above}<table>{head}{body}</table></div>"


def shorten(parts: Sequence[str], limit: int = 6) -> str:
    """Return the first parts, separated by commas, and the number of the others.

    Example:
        >>> shorten(["a", "b", "c"], 2)
        'a, b and 1 more'
    """
    rest = len(parts) - limit
    return ", ".join(parts[:limit]) + (f" and {rest} more" if rest > 0 else "")
