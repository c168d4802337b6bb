"""`clew data`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from clew.cli.options import Settings, What, bold, console, overrides, progress, table
from clew.cli.transfer_progress import show_transfers, transfer_text
from clew.errors import DataError

app = typer.Typer(
    help="Events and datasets: generate, inspect, verify; copies to and from stores: get, put.", no_args_is_help=True
)


@app.command()
def generate(
    recipe: What,
    events: Annotated[int, typer.Option(min=1, help="Number of events.")] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of the generator.")] = 0,
    output: Annotated[Path, typer.Option(help="Folder for the files.")] = Path("events"),
    detector: Annotated[str | None, typer.Option(help="Short for --set detector.name=NAME.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes (default: all cores).")] = None,
    settings: Settings = None,
) -> None:
    """Generate synthetic raw events with a recipe's generator.

    \b
    Examples:
      clew data generate tracking --events 10000 --seed 1 --output events
      clew data generate tracknet --detector bmn --events 10000
    """
    from clew.data.prepare.generate import generate as work
    from clew.settings import load_settings

    loaded = load_settings(recipe, overrides(settings, detector__name=detector))
    started = time.perf_counter()
    with progress() as bar:
        task = bar.add_task("generate", total=events, note="")

        def show(path: Path, count: int) -> None:
            bar.update(task, advance=count, note=path.name)

        done = work(loaded.recipe, events, seed, output, workers=workers, progress=show)
    rate = done / max(time.perf_counter() - started, 1e-9)
    console.print(f"{bold(output)}: {done:,} synthetic events [dim]({rate:,.0f}/s)[/]")


@app.command()
def inspect(
    path: Annotated[str, typer.Argument(help="Folder or URL of a dataset, or any file that a reader accepts.")],
    html: Annotated[Path | None, typer.Option(help="Write an HTML page with plots instead.")] = None,
    reader: Annotated[str | None, typer.Option(help="Name of the reader of a file (default: by its name).")] = None,
) -> None:
    """Show a dataset or a file: columns with units, types, lengths, ranges and histograms.

    \b
    Examples:
      clew data inspect events.root
      clew data inspect events.root:Events --html events.html
      clew data inspect hits.csv --reader text
      clew data inspect dataset
      clew data inspect dataset --html dataset.html
    """
    from clew.data.dataset import Dataset
    from clew.data.dataset import inspect as dataset_facts

    if reader is not None or _is_file(path):
        _inspect_file(path, html, reader)
        return
    _check_folder(Path(path))
    dataset = Dataset(path)
    if html is not None:
        console.print(bold(dataset_facts.write_page(dataset, html)))
        return
    manifest = dataset.manifest
    console.print(f"{bold(path)}  recipe {Path(manifest.recipe).stem}, key {manifest.key[:16]}")
    rows = [(name, f"{count:,}", len(manifest.splits[name])) for name, count in dataset.splits.items()]
    console.print(table(("split", "events", "shards"), rows, right=(1, 2)))
    sparklines = {histogram.name: dataset_facts.sparkline(histogram) for histogram in dataset_facts.histograms(dataset)}
    lines = [(*row, sparklines.pop(row[0], "")) for row in dataset_facts.column_rows(dataset)]
    console.print(table((*dataset_facts.COLUMN_HEADER, "histogram"), lines, right=(3, 4, 5, 6)))
    for name, line in sparklines.items():
        console.print(f"{name}  {line}")
    more = f" and {len(manifest.inputs) - 4} more" if len(manifest.inputs) > 4 else ""
    names = [f"{item.name} ({item.split})" if item.split else item.name for item in manifest.inputs[:4]]
    console.print(f"from {escape(', '.join(names))}{more}")


def _check_folder(folder: Path) -> None:
    """Raise DataError for a folder of files that is not a dataset."""
    if folder.is_dir() and not (folder / "manifest.json").exists():
        files = sorted(file for file in folder.iterdir() if file.is_file() and not file.name.startswith("."))
        if files:
            raise DataError(
                f"{folder}: a folder of files, not a dataset; name one of them: clew data inspect {files[0]}"
            )


def _is_file(path: str) -> bool:
    """Whether this is a file of events, not a dataset."""
    from clew import readers, storage
    from clew.errors import DataError

    if not storage.is_url(path):
        return storage.local_path(storage.split_inside(path)[0]).is_file()
    try:
        readers.kind_of(path)
    except DataError:
        return False
    return True


def _inspect_file(path: str, html: Path | None, reader: str | None) -> None:
    from clew.data.dataset import inspect as dataset_facts
    from clew.data.dataset.inspect_file import FILE_HEADER, read_content, write_file_page

    content = read_content(path, reader)
    if html is not None:
        console.print(bold(write_file_page(content, html)))
        return
    console.print(f"{bold(path)}  {content.title()}")
    sparklines = {histogram.name: dataset_facts.sparkline(histogram) for histogram in content.histograms()}
    rows = [(*row, sparklines.get(row[0], "")) for row in content.rows()]
    console.print(table((*FILE_HEADER, "histogram"), rows, right=(4, 5, 6)))


@app.command()
def verify(path: Annotated[str, typer.Argument(help="Folder of the dataset, or its URL in a store.")]) -> None:
    """Read a whole dataset and compare checksums; the first shard that is missing or changed is named.

    \b
    Example:
      clew data verify dataset
    """
    from clew.data.dataset import Dataset

    dataset = Dataset(path)
    dataset.verify()
    console.print(f"{bold(path)}: {sum(dataset.splits.values()):,} events, all checksums match")


@app.command()
def get(
    source: Annotated[str, typer.Argument(help="A file or folder in a store, or a Rucio DID.")],
    target: Annotated[str, typer.Argument(help="Target file or folder (default: the same name, here).")] = "",
    replace: Annotated[bool, typer.Option("--replace", help="Overwrite files with other content.")] = False,
    workers: Annotated[int, typer.Option(min=1, help="Parts to transfer at the same time.")] = 8,
) -> None:
    """Copy from a store to this machine, in parallel and with checksums. An interrupted copy is resumed.

    \b
    Examples:
      clew data get s3://bucket/events events
      clew data get root://eospublic.cern.ch//eos/opendata/file.root
      clew data get rucio:scope:dataset dataset
    """
    from clew import storage

    _copy(source, target or storage.base_name(source), replace=replace, workers=workers)


@app.command()
def put(
    source: Annotated[str, typer.Argument(help="A local file or folder.")],
    target: Annotated[str, typer.Argument(help="s3://bucket/name, root://host//path or rucio:SCOPE:NAME?rse=SITE.")],
    replace: Annotated[bool, typer.Option("--replace", help="Overwrite files with other content.")] = False,
    workers: Annotated[int, typer.Option(min=1, help="Parts to transfer at the same time.")] = 8,
) -> None:
    """Copy to a store, in parallel and with checksums. An interrupted copy is resumed.

    \b
    Examples:
      clew data put dataset s3://bucket/dataset
      clew data put events.root root://host//store/user/me/events.root
      clew data put dataset 'rucio:user.me:tracks?rse=SITE_DISK'
    """
    _copy(source, target, replace=replace, workers=workers)


def _copy(source: str, target: str, *, replace: bool, workers: int) -> None:
    from clew import storage

    started = time.perf_counter()
    with show_transfers("copy") as show:
        done = storage.copy(source, target, watch=show, replace=replace, workers=workers)
    console.print(f"{bold(storage.mask_secrets(target))}: {transfer_text(done, time.perf_counter() - started)}")
