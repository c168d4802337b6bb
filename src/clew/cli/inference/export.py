"""`clew export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clew.cli.options import bold, console, program


def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run's folder.")],
    to: Annotated[str, typer.Option(help="onnx, torch (an exported program, .pt2) or keras.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file to write (default: the run's name).")
    ] = None,
    weights: Annotated[str, typer.Option(help="Which checkpoint: best or last.")] = "best",
    tolerance: Annotated[
        float, typer.Option(min=0, help="Largest difference from the original, over max(1, |original|).")
    ] = 1e-4,
    data: Annotated[
        str | None, typer.Option(help="A dataset with samples to compare on (default: the one it was trained on).")
    ] = None,
    split: Annotated[str | None, typer.Option(help="The split of it (default: test, else val).")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Take the place of an existing file.")] = False,
) -> None:
    """Take a run's model home: one file with network, weights and the scaling of its inputs.

    Before it is kept, it is asked about real samples; if it does not say what the original says, nothing is written.

    \b
    Examples:
      clew export runs/tracking-001 --to onnx
      clew export runs/cnn-001 --to keras --output trained.keras
      clew export runs/top_tagger-001 --to torch --tolerance 1e-6
      clew predict tracking-001.onnx dataset -o tracks.parquet
    """
    from clew.runs import Run

    opened = Run.open(run)
    from clew.inference.export.api import export as work  # loads torch: a wrong folder is told before that

    made = work(
        opened, to=to, output=output, weights=weights, tolerance=tolerance, data=data, split=split, replace=replace
    )
    facts = made.facts
    given = ", ".join(f"{each.name} ({', '.join(each.axes)}, ...)" for each in facts.inputs)
    console.print(f"{bold(made.path)}: {given} to {', '.join(facts.outputs)}", markup=True)
    console.print(f"  differs from the original by {facts.difference:.1g} at most (tolerance {facts.tolerance:g})")
    for told, items in (("does itself", facts.included), ("does not do", facts.left_out)):
        if items:
            console.print(f"  {told}: {'; '.join(items)}", markup=False)
    console.print(f"Next: {program()} predict {bold(made.path)} DATA -o scores.parquet")
