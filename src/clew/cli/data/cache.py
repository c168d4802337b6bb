"""`clew cache`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clew.cli.listing import ColumnsOption, JsonOption, SortOption, print_list
from clew.cli.options import bold, console, parse_bytes, parse_seconds, table
from clew.errors import ConfigError

if TYPE_CHECKING:
    from clew.data.prepare.stage_cache import StageCache
    from clew.storage import InputCache

app = typer.Typer(
    help="Cached results of prepare, and cached inputs from stores: list, size, limit, prune.", no_args_is_help=True
)
_Folder = Annotated[Path | None, typer.Option("--cache", help="The cache's folder (default: the user's).")]


@app.command("list")
def list_(
    cache: _Folder = None,
    limit: Annotated[int, typer.Option(min=1, help="How many, newest first.")] = 20,
    sort: SortOption = "",
    columns: ColumnsOption = "",
    as_json: JsonOption = False,
) -> None:
    """List the cached results; those used last come first.

    \b
    Examples:
      clew cache list --limit 50
      clew cache list --sort -MB
      clew cache list --json
    """
    import time

    opened = _open(cache)
    entries = opened.entries()
    now = time.time()
    rows = [
        {"stage": entry.stage, "key": entry.key, "MB": entry.bytes / 1e6, "used": now - entry.used}
        for entry in reversed(entries[-limit:])
    ]
    texts = {"key": lambda key: str(key)[:16], "MB": lambda size: f"{size:,.1f}", "used": _age}
    print_list(rows, ("stage", "key", "MB", "used"), sort=sort, chosen=columns, as_json=as_json, texts=texts)
    if len(entries) > limit and not as_json:
        console.print(f"[dim]and {len(entries) - limit:,} more[/]")


@app.command()
def size(cache: _Folder = None, as_json: JsonOption = False) -> None:
    """Print the size of the cache per stage.

    \b
    Examples:
      clew cache size
      clew cache size --json
    """
    opened = _open(cache)
    entries = opened.entries()
    stages = dict.fromkeys(entry.stage for entry in entries)
    sizes = {stage: [entry.bytes for entry in entries if entry.stage == stage] for stage in stages}
    if as_json:
        facts = [{"stage": stage, "results": len(each), "bytes": sum(each)} for stage, each in sizes.items()]
        typer.echo(json.dumps(facts, indent=1))
        return
    sizes["all"] = [entry.bytes for entry in entries]
    rows = [(stage, f"{len(each):,}", f"{sum(each) / 1e6:,.1f}") for stage, each in sizes.items()]
    console.print(bold(opened.folder))
    console.print(table(("stage", "results", "MB"), rows, right=(1, 2)))
    console.print(f"[dim]cached inputs may take {_inputs(cache).limit / 1e9:,.1f} GB[/]")


@app.command()
def limit(
    size: Annotated[str, typer.Argument(help="Largest total size of cached inputs: 500M, 20G.")],
    cache: _Folder = None,
) -> None:
    """Limit the size of cached inputs from stores; the least recently used are removed at once if needed.

    \b
    Example:
      clew cache limit 100G
    """
    inputs = _inputs(cache)
    inputs.limit = int(parse_bytes(size, "limit"))
    console.print(f"{bold(inputs.folder)}: at most {inputs.limit / 1e9:,.1f} GB")


@app.command()
def prune(
    older_than: Annotated[str | None, typer.Option(help="Remove results not used for: 12h, 30d, 2w.")] = None,
    keep: Annotated[str | None, typer.Option(help="Remove the least recently used, down to: 500M, 20G.")] = None,
    cache: _Folder = None,
) -> None:
    """Remove results from the cache. Datasets do not change; removed results are computed again when needed.

    \b
    Examples:
      clew cache prune --older-than 30d
      clew cache prune --keep 20G
    """
    if older_than is None and keep is None:
        raise ConfigError("choose what to remove: --older-than 30d, or --keep 20G")
    seconds = None if older_than is None else parse_seconds(older_than, "--older-than")
    limit = None if keep is None else int(parse_bytes(keep, "--keep"))
    removed = _open(cache).prune(older_than=seconds, keep=limit)
    console.print(f"removed {len(removed):,} results, {sum(entry.bytes for entry in removed) / 1e6:,.1f} MB")


def _open(folder: Path | None) -> StageCache:
    from clew.data.prepare.stage_cache import StageCache
    from clew.storage import cache_folder

    return StageCache(folder or cache_folder())


def _inputs(folder: Path | None) -> InputCache:
    from clew.storage import InputCache

    return InputCache(folder)


def _age(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f}{unit} ago"
    return f"{max(seconds, 0):.0f}s ago"
