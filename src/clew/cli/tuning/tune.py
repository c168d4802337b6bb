"""`clew tune`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from clew.cli.jobs.on_site import SiteOptions, SiteWork, on_site
from clew.cli.options import Settings, bold, console, overrides, printed_warnings, program

if TYPE_CHECKING:
    from clew.tuning.snapshot import TrialSummary
    from clew.tuning.study import Study

_Study = Annotated[str, typer.Argument(metavar="STUDY", help="Folder of the study.")]
_Trial = Annotated[int, typer.Argument(metavar="TRIAL", help="Number of the trial, as printed by `ask`.")]
_Lease = Annotated[str | None, typer.Option(help="Lease printed by `ask`: refuse if the trial has another owner now.")]


class _TuneGroup(TyperGroup):
    """A command group in which `clew tune my.yaml` is `clew tune run my.yaml`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        args = _with_pack_sizes(args)
        first = args[0] if args else ""
        is_command = first in self.commands or first in ("--help", "")
        return super().resolve_command(ctx, args if is_command else ["run", *args])


def _with_pack_sizes(args: list[str]) -> list[str]:
    """Add `auto` after each `--packed` without a value."""
    expanded = []
    for argument, following in zip(args, [*args[1:], "--"], strict=True):
        expanded.append(argument)
        if argument == "--packed" and not (following.isdigit() or following == "auto"):
            expanded.append("auto")
    return expanded


app = typer.Typer(
    help="Search for good settings: run, show, best; for programs ask, report, tell; for PanDA steer, evaluate",
    no_args_is_help=True,
    cls=_TuneGroup,
    context_settings={"ignore_unknown_options": True},
)


def _plan(options: SiteOptions, *, mode: str | None, **arguments: Any) -> SiteWork | None:
    """Plan `--on SITE`: one job per trial, coordinated by this process, or the whole study in jobs."""
    from clew.cli.tuning import site

    return site.plan(options, mode or "trials", **arguments)


@app.command()
@on_site(_plan)
def run(
    recipe: Annotated[
        str | None,
        typer.Argument(help="A YAML file with a section `tune`, or a recipe and --set tune...."),
    ] = None,
    trials: Annotated[int | None, typer.Option(help="Number of trials in total.")] = None,
    parallel: Annotated[int | None, typer.Option(help="Trials at a time (default: as many as fit).")] = None,
    ranks: Annotated[int | None, typer.Option("--ranks-per-trial", help="Processes per trial.")] = None,
    packed: Annotated[
        str | None,
        typer.Option(
            metavar="[N]", help="Train up to N small models together in one process (default N: 16, or 256 on a GPU)."
        ),
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="A dataset made by `clew prepare`.")] = None,
    output: Annotated[
        str | None, typer.Option(help="Folder of the study (default: the next free one in studies/).")
    ] = None,
    settings: Settings = None,
    resume: Annotated[str | None, typer.Option(metavar="STUDY", help="Resume a study.")] = None,
    join: Annotated[
        bool, typer.Option("--join", help="Run trials of a study that another process coordinates.")
    ] = False,
    oversubscribe: Annotated[
        bool, typer.Option("--oversubscribe", help="Allow more trials at a time than cores or devices.")
    ] = False,
    mode: Annotated[
        str | None,
        typer.Option(
            "--as",
            metavar="trials|array|block",
            help="With --on: one job per trial, several jobs that ask for trials, or one job.",
        ),
    ] = None,
) -> None:
    """Run trials until the requested number has ended. The word `run` may be omitted.

    \b
    Examples:
      clew tune run my.yaml --trials 40
      clew tune run my.yaml --parallel 4 --ranks-per-trial 2
      clew tune run my.yaml --trials 256 --packed
      clew tune run tracking --set 'tune.space={train.optimizer.lr: {log: [1e-4, 1e-1]}}' --set tune.objective=val/loss
      clew tune run --resume studies/tracking-001 --trials 80
      clew tune run --resume studies/tracking-001 --join
      mpiexec -n 9 clew tune run my.yaml --ranks-per-trial 2
      clew tune run my.yaml --on mycluster --parallel 20
      clew tune run my.yaml --on mycluster --parallel 8 --as block --wall-time 12h

    Every trial is a run in the folder of the study: `clew runs list studies/tracking-001/trials` lists them.
    On Ctrl-C, SIGTERM or SIGUSR1 the trials write checkpoints and stop; --resume continues them.
    """
    from clew.cli.tuning import run as tune_run

    options: dict[str, Any] = {"trials": trials, "parallel": parallel, "ranks": ranks}
    if packed is not None:
        options["packed"] = int(packed) if packed.isdigit() else packed
    values = overrides(settings, **{f"tune__{name}": value for name, value in options.items()}, train__dataset=dataset)
    tune_run.run(recipe, values, output=output, resume=resume, join=join, oversubscribe=oversubscribe)


@app.command()
def show(
    study: _Study,
    html: Annotated[bool, typer.Option("--html", help="Write report.html and print its path.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print all facts about every trial as JSON.")] = False,
) -> None:
    """Show the trials of a study, the best first.

    \b
    Examples:
      clew tune show studies/tracking-001
      clew tune show studies/tracking-001 --html
    """
    from clew.cli.tuning import show as tune_show
    from clew.tuning.study import Study

    opened = Study.open(study)
    if html:
        from clew.tuning.report import write_report

        console.print(bold(write_report(opened)))
    elif as_json:
        typer.echo(json.dumps([vars(trial) for trial in opened.trials()], indent=1))
    else:
        tune_show.show(opened)


@app.command()
def best(
    study: _Study,
    apply: Annotated[
        Path | None,
        typer.Option(
            "--apply", metavar="FILE", help="Write all settings, with the values of the trial, to a YAML file."
        ),
    ] = None,
    trial: Annotated[
        int | None, typer.Option(help="Use this trial instead of the best. Needed if there is a Pareto front.")
    ] = None,
) -> None:
    """Print the best trial, or the Pareto front, as JSON; with --apply write its settings for `clew train`.

    \b
    Examples:
      clew tune best studies/tracking-001
      clew tune best studies/tracking-001 --apply best.yaml
    """
    from clew.core.config import to_yaml
    from clew.core.files import write_text
    from clew.errors import RunError
    from clew.training.run_recipe import warn_if_code_changed
    from clew.tuning import space
    from clew.tuning.job_executor import common_settings
    from clew.tuning.study import Study

    opened = Study.open(study)
    chosen = opened.best() if trial is None else [each for each in opened.trials() if each.number == trial]
    if not chosen:
        raise RunError(f"{study}: no {'complete trial yet' if trial is None else f'trial {trial}'}")
    if apply is None:
        typer.echo(json.dumps([_trial_facts(opened, each) for each in chosen], indent=1))
        return
    if len(chosen) > 1:
        numbers = ", ".join(str(each.number) for each in chosen)
        raise RunError(f"{study}: the Pareto front has {len(chosen)} trials ({numbers}); choose one with --trial")
    data = opened.folder.document().data
    fixed = common_settings(data, opened.config) if "recipe" in data else {}
    with printed_warnings():
        for run in sorted(opened.folder.trials.glob(f"{chosen[0].name}*"))[:1]:  # one of its folds, if there are some
            warn_if_code_changed(run)
    write_text(apply, to_yaml(space.trial_document(data, {**fixed, **chosen[0].settings})))
    console.print(f"{bold(apply)} has the settings of trial {chosen[0].number}. Next: {program()} train {bold(apply)}")


@app.command()
def ask(
    study: _Study,
    number: Annotated[int, typer.Option("--n", min=1, help="Number of trials.")] = 1,
    within: Annotated[
        str | None,
        typer.Option(help="Time limit, for example 30m or 12h. After it, the trial goes to the next caller."),
    ] = None,
    settings: Settings = None,
    recipe: Annotated[
        str | None, typer.Option(metavar="YAML", help="Create the study from this file if it does not exist.")
    ] = None,
) -> None:
    """Ask for trials, to be executed by another program, as JSON lines. Empty if all were asked for.

    \b
    Examples:
      clew tune ask studies/tracking-001
      clew tune ask studies/mine --recipe my.yaml --n 4 --within 2h
    """
    import secrets

    from clew.cli.options import parse_seconds
    from clew.tuning.proposed_trial import EXTERNAL
    from clew.tuning.study import Study

    seconds = None if within is None else parse_seconds(within, "--within")
    if recipe is not None and not (Path(study) / "config.yaml").exists():
        from clew.settings import load_settings
        from clew.tuning.api import open_or_create

        opened = open_or_create(load_settings(recipe, settings or ()), study)
    else:
        opened = Study.open(study)
    for _ in range(number):
        lease = f"{EXTERNAL}-{secrets.token_hex(4)}"
        proposal = opened.ask(lease, within=seconds)
        if proposal is None:
            return
        typer.echo(json.dumps({"trial": proposal.number, "settings": proposal.values, "lease": lease}))


@app.command()
def report(
    study: _Study,
    trial: _Trial,
    epoch: Annotated[int, typer.Option(help="Epochs (or folds) done, counted from 1.")],
    value: Annotated[float, typer.Option(help="The objective now.")],
    lease: _Lease = None,
) -> None:
    """Report the objective after an epoch. Prints `prune` or `continue`.

    \b
    Example:
      clew tune report studies/tracking-001 7 --epoch 3 --value 0.52
    """
    opened = _open_leased(study, trial, lease)
    typer.echo("prune" if opened.report(trial, epoch, value) else "continue")


@app.command()
def tell(
    study: _Study,
    trial: _Trial,
    value: Annotated[
        list[float] | None, typer.Option(help="The objective. Repeat the option for several objectives.")
    ] = None,
    pruned: Annotated[bool, typer.Option("--pruned", help="The trial was pruned.")] = False,
    failed: Annotated[str | None, typer.Option(metavar="REASON", help="The trial failed.")] = None,
    lease: _Lease = None,
) -> None:
    """Tell how a trial ended. A second call for the same trial changes nothing.

    \b
    Examples:
      clew tune tell studies/tracking-001 7 --value 0.93
      clew tune tell studies/tracking-001 8 --failed 'out of memory'
    """
    from clew.errors import ConfigError

    if sum((bool(value), pruned, failed is not None)) != 1:
        raise ConfigError("choose one of --value, --pruned and --failed")
    opened = _open_leased(study, trial, lease)
    state: Any = "complete" if value else "pruned" if pruned else "failed"
    if not opened.tell(trial, value, state=state, reason=failed or ""):
        console.print(f"trial {trial} had ended before; nothing changed")


def _open_leased(study: str, trial: int, lease: str | None) -> Study:
    from clew.tuning.study import Study

    opened = Study.open(study)
    if lease is not None:
        opened.check_lease(trial, lease)
    return opened


def _trial_facts(study: Study, trial: TrialSummary) -> dict[str, Any]:
    names = [objective.metric for objective in study.config.objectives]
    return {
        "trial": trial.number,
        "values": dict(zip(names, trial.values, strict=False)),
        "settings": trial.settings,
        "run": str(study.folder.trials / trial.name),
    }


@app.command()
def steer(
    request: Annotated[Path, typer.Option("--in", help="JSON file with points, losses and opt_space (%IN).")],
    output: Annotated[Path, typer.Option("--out", help="JSON file for the new points (%OUT).")],
    number: Annotated[int, typer.Option("--n", help="Number of new points (%NUM_POINTS).")],
    limit: Annotated[int, typer.Option("--max", help="Largest number of points in total (%MAX_POINTS).")],
) -> None:
    """Propose points for the hyper-parameter optimisation of PanDA: the steering command of phpo.

    \b
    Example:
      clew tune steer --in input.json --out output.json --n 4 --max 40
      phpo --steeringExec 'run --rm IMAGE clew tune steer --in %IN --out %OUT --n %NUM_POINTS --max %MAX_POINTS' ...
    """
    from clew.tuning import panda

    panda.write_json(output, panda.steer(panda.read_json(request), count=number, limit=limit))


@app.command()
def evaluate(
    recipe: Annotated[str, typer.Argument(help="YAML file with the settings and `tune.objective`.")],
    point_file: Annotated[Path, typer.Option("--in", help="JSON file with the point.")] = Path("input.json"),
    files: Annotated[Path, typer.Option("--data", help="JSON file with the list of input files.")] = Path(
        "input_ds.json"
    ),
    output: Annotated[Path, typer.Option("--out", help="JSON file for the status and the loss.")] = Path("output.json"),
    name: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=KEY", help="Key of the settings for a name in the point. Repeatable."),
    ] = None,
    settings: Settings = None,
) -> None:
    """Evaluate one point for PanDA: the evaluation command of phpo. All files go to the working folder.

    \b
    Example:
      clew tune evaluate my.yaml --in input.json --out output.json --name lr=train.optimizer.lr
      phpo --evaluationExec 'clew tune evaluate my.yaml' --evaluationInput input.json --evaluationOutput output.json ...

    If it fails, the status is not 0 and the loss is 1e30. The command itself still exits with 0, as PanDA requires.
    """
    from clew.cli.runs.follow import following
    from clew.errors import ClewError, ConfigError
    from clew.settings import load_settings
    from clew.tuning import panda

    names = [option.partition("=")[::2] for option in name or ()]
    if not all(key for _, key in names):
        raise ConfigError("--name: expected NAME=KEY, for example --name lr=train.optimizer.lr")
    try:
        inputs = panda.read_json(files) if files.exists() else []
        loaded, point = load_settings(recipe, settings or ()), panda.read_json(point_file)
        with following() as on_start:
            result = panda.evaluate(loaded, point, inputs, folder=Path.cwd(), names=dict(names), on_start=on_start)
    except ClewError as error:
        panda.write_json(output, {"status": error.exit_code, "loss": panda.FAILED_LOSS, "message": str(error)})
        raise
    panda.write_json(output, result)
    console.print(f"{bold(output)}: status {result['status']}, loss {result['loss']:.6g}  {result['message']}")
