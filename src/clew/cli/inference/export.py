"""`clew export`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clew.cli.options import bold, console, printed_warnings, program

if TYPE_CHECKING:
    from clew.inference.export.api import Export


def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Folder of the run.")],
    to: Annotated[
        str, typer.Option(help="onnx, torch (an exported program, .pt2), keras, savedmodel or hls4ml (firmware).")
    ] = "onnx",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The file (default: the run's name).")] = None,
    weights: Annotated[str, typer.Option(help="Which checkpoint: best or last.")] = "best",
    tolerance: Annotated[
        float, typer.Option(min=0, help="Largest difference from the original, over max(1, |original|).")
    ] = 1e-4,
    data: Annotated[
        str | None, typer.Option("--dataset", help="A dataset for the comparison (default: the one it was trained on).")
    ] = None,
    split: Annotated[str | None, typer.Option(help="Split of the dataset (default: test, else val).")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace an existing file.")] = False,
    keep_float64: Annotated[
        bool, typer.Option("--keep-float64", help="Inputs that are float64 stay float64 (default: float32).")
    ] = False,
    cpp: Annotated[bool, typer.Option("--cpp", help="Also write a C++ program that runs the ONNX file.")] = False,
    precision: Annotated[str | None, typer.Option(help="Numbers of hls4ml (default: 'ap_fixed<40,14>').")] = None,
    current_code: Annotated[
        bool, typer.Option("--current-code", help="Use today's code of the recipe, not the code that the run saved.")
    ] = False,
    trust: Annotated[
        bool, typer.Option("--trust", help="Run the code of a run that came from elsewhere, now and later.")
    ] = False,
) -> None:
    """Export a run's model: one file with the network, its weights and the scaling of its inputs.

    The exported model is compared with the original on real samples. If they differ, no file is written.

    \b
    Examples:
      clew export runs/tagger-001 --cpp
      clew export runs/cnn-001 --to keras --output trained.keras
      clew export runs/top_tagger-001 --to torch --tolerance 1e-6
      clew export runs/trigger-001 --to hls4ml --precision 'ap_fixed<16,6>' --tolerance 0.05
    """
    from clew.runs import Run

    opened = Run.open(run)
    from clew.inference.export.api import export as export_model  # loads torch, so a wrong folder is reported first

    with printed_warnings():
        exported = export_model(
            opened,
            to=to,
            output=output,
            weights=weights,
            tolerance=tolerance,
            data=data,
            split=split,
            replace=replace,
            keep_float64=keep_float64,
            cpp=cpp,
            precision=precision,
            current_code=current_code,
            trust=trust,
        )
    _show(exported, cpp)


def _show(exported: Export, cpp: bool) -> None:
    """Print what the file holds, and how it differs from the original."""
    facts = exported.facts
    inputs = ", ".join(f"{each.name} {each.type} ({', '.join(map(str, each.shape))})" for each in facts.inputs)
    console.print(f"{bold(exported.path)}: {inputs} to {', '.join(facts.outputs)}", markup=True)
    narrowed = [each.name for each in facts.inputs if each.sample_type]
    if narrowed:
        console.print(f"  float64 inputs became float32: {', '.join(narrowed)} (--keep-float64 keeps them)")
    console.print(f"  differs from the original by {facts.difference:.1g} at most (tolerance {facts.tolerance:g})")
    for title, items in (("includes", facts.included), ("does not include", facts.left_out)):
        if items:
            console.print(f"  {title}: {'; '.join(items)}", markup=False)
    if cpp:
        console.print(
            f"  C++ example: {bold(exported.path.with_suffix('.cpp'))}; its first lines say how to compile it"
        )
    console.print(f"Next: {program()} predict {bold(exported.path)} DATA -o scores.parquet")
