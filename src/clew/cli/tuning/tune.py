"""`clew tune`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from clew.cli.jobs.on_site import SiteOptions, SiteWork, on_site
from clew.cli.options import Settings, bold, console, overrides, program

if TYPE_CHECKING:
    from clew.tuning.study import Study

_Study = Annotated[str, typer.Argument(metavar="STUDY", help="The study's folder.")]
_Trial = Annotated[int, typer.Argument(metavar="TRIAL", help="Its number, as `ask` gave it.")]
_Lease = Annotated[str | None, typer.Option(help="What `ask` gave: refuse if another has the trial by now.")]


class _Verbs(TyperGroup):
    """`clew tune my.yaml` is `clew tune run my.yaml`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        args = _with_sizes(args)
        first = args[0] if args else ""
        known = first in self.commands or first in ("--help", "")
        return super().resolve_command(ctx, args if known else ["run", *args])


def _with_sizes(args: list[str]) -> list[str]:
    """`--packed` may stand alone."""
    follow = [*args[1:], "--"]
    return [part for word, after in zip(args, follow, strict=True) for part in _sized(word, after)]


def _sized(word: str, after: str) -> list[str]:
    return [word, "auto"] if word == "--packed" and not (after.isdigit() or after == "auto") else [word]


app = typer.Typer(
    help="Search for better settings: run, show, best; from outside ask, report, tell; on a grid steer, evaluate.",
    no_args_is_help=True,
    cls=_Verbs,
    context_settings={"ignore_unknown_options": True},
)


def _plan(asked: SiteOptions, *, spread: str | None, **options: Any) -> SiteWork | None:
    """What `--on SITE` does: one job a trial, watched from here, or all of the study inside of jobs."""
    from clew.cli.tuning import site

    return site.plan(asked, spread or "trials", **options)


@app.command()
@on_site(_plan)
def run(
    recipe: Annotated[
        str | None,
        typer.Argument(help="A YAML with a section `tune`, or whatever `clew train` takes and --set tune...."),
    ] = None,
    trials: Annotated[int | None, typer.Option(help="How many, altogether.")] = None,
    parallel: Annotated[int | None, typer.Option(help="Trials at a time (default: as many as fit).")] = None,
    ranks: Annotated[int | None, typer.Option("--ranks-per-trial", help="Processes that train one together.")] = None,
    packed: Annotated[
        str | None,
        typer.Option(metavar="[N]", help="Train up to N small models at once in a process (without N: 16, or 256)."),
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="A folder that `clew prepare` made.")] = None,
    output: Annotated[str | None, typer.Option(help="The study's folder (default: the next under studies/).")] = None,
    settings: Settings = None,
    resume: Annotated[str | None, typer.Option(metavar="STUDY", help="Go on with a study.")] = None,
    join: Annotated[bool, typer.Option("--join", help="Help with a study that another process is at.")] = False,
    oversubscribe: Annotated[bool, typer.Option("--oversubscribe", help="More trials than cores or devices.")] = False,
    spread: Annotated[
        str | None,
        typer.Option(
            "--as", metavar="trials|array|block", help="With --on: a job a trial, jobs that pull trials, or one job."
        ),
    ] = None,
) -> None:
    """Run trials until as many as were wanted have ended. `run` may be left out.

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

    Every trial is a run under the study's folder: `clew runs list studies/tracking-001/trials` shows them all.
    Stopped by Ctrl-C, SIGTERM or SIGUSR1, trials write checkpoints, and --resume goes on.
    """
    from clew.cli.tuning import run as tune_run

    options: dict[str, Any] = {"trials": trials, "parallel": parallel, "ranks": ranks}
    if packed is not None:
        options["packed"] = int(packed) if packed.isdigit() else packed
    given = overrides(settings, **{f"tune__{name}": value for name, value in options.items()}, train__dataset=dataset)
    tune_run.run(recipe, given, output=output, resume=resume, join=join, oversubscribe=oversubscribe)


@app.command()
def show(
    study: _Study,
    html: Annotated[bool, typer.Option("--html", help="Write report.html and say where it is.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For other programs: all that is known of each.")] = False,
) -> None:
    """The trials of a study, the best first.

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
        typer.echo(json.dumps([vars(each) for each in opened.outcomes()], indent=1))
    else:
        tune_show.show(opened)


@app.command()
def best(
    study: _Study,
    apply: Annotated[
        Path | None, typer.Option("--apply", metavar="FILE", help="Write the whole configuration with its values.")
    ] = None,
    trial: Annotated[
        int | None, typer.Option(help="Another trial than the best; needed to choose from several.")
    ] = None,
) -> None:
    """The best trial as JSON, or the Pareto front; with --apply its settings as a YAML for `clew train`.

    \b
    Examples:
      clew tune best studies/tracking-001
      clew tune best studies/tracking-001 --apply best.yaml
    """
    from clew.core.config import to_yaml
    from clew.core.files import write_text
    from clew.errors import RunError
    from clew.tuning import space
    from clew.tuning.job_executor import common_settings
    from clew.tuning.study import Study

    opened = Study.open(study)
    found = opened.best() if trial is None else [each for each in opened.outcomes() if each.number == trial]
    if not found:
        raise RunError(f"{study}: no {'complete trial yet' if trial is None else f'trial {trial}'}")
    if apply is None:
        typer.echo(json.dumps([_told(opened, each) for each in found], indent=1))
        return
    if len(found) > 1:
        numbers = ", ".join(str(each.number) for each in found)
        raise RunError(f"{study}: the front has {len(found)} trials ({numbers}); choose one with --trial")
    data = opened.folder.document().data
    fixed = common_settings(data, opened.config) if "recipe" in data else {}
    write_text(apply, to_yaml(space.trial_document(data, {**fixed, **found[0].settings})))
    console.print(f"{bold(apply)} has the settings of trial {found[0].number}. Next: {program()} train {bold(apply)}")


@app.command()
def ask(
    study: _Study,
    number: Annotated[int, typer.Option("--n", min=1, help="How many.")] = 1,
    within: Annotated[
        str | None, typer.Option(help="Hand it to the next who asks if it is not told after so long: 30m, 12h.")
    ] = None,
    settings: Settings = None,
    recipe: Annotated[
        str | None, typer.Option(metavar="YAML", help="Make the study from this if it is not there.")
    ] = None,
) -> None:
    """Trials to be done elsewhere, as JSON lines; an empty answer means that all were asked for.

    \b
    Examples:
      clew tune ask studies/tracking-001
      clew tune ask studies/mine --recipe my.yaml --n 4 --within 2h
    """
    import secrets

    from clew.cli.options import seconds_in
    from clew.tuning.study import EXTERNAL, Study

    seconds = None if within is None else seconds_in(within, "--within")
    if recipe is not None and not (Path(study) / "config.yaml").exists():
        from clew.settings import load_settings
        from clew.tuning.api import open_or_create

        opened = open_or_create(load_settings(recipe, settings or ()), study)
    else:
        opened = Study.open(study)
    for _ in range(number):
        lease = f"{EXTERNAL}-{secrets.token_hex(4)}"
        asked = opened.ask(lease, within=seconds)
        if asked is None:
            return
        typer.echo(json.dumps({"trial": asked.number, "settings": asked.values, "lease": lease}))


@app.command()
def report(
    study: _Study,
    trial: _Trial,
    step: Annotated[int, typer.Option(help="Epochs (or folds) done, counted from 1.")],
    value: Annotated[float, typer.Option(help="The objective now.")],
    lease: _Lease = None,
) -> None:
    """A first look at the objective; says `prune` or `go on`.

    \b
    Example:
      clew tune report studies/tracking-001 7 --step 3 --value 0.52
    """
    opened = _held(study, trial, lease)
    typer.echo("prune" if opened.report(trial, step, value) else "go on")


@app.command()
def tell(
    study: _Study,
    trial: _Trial,
    value: Annotated[list[float] | None, typer.Option(help="The objective; repeat it where there are several.")] = None,
    pruned: Annotated[bool, typer.Option("--pruned", help="It was stopped as hopeless.")] = False,
    failed: Annotated[str | None, typer.Option(metavar="REASON", help="It failed.")] = None,
    lease: _Lease = None,
) -> None:
    """How a trial that was asked for ended. Told twice, the first time counts.

    \b
    Examples:
      clew tune tell studies/tracking-001 7 --value 0.93
      clew tune tell studies/tracking-001 8 --failed 'out of memory'
    """
    from clew.errors import ConfigError

    if sum((bool(value), pruned, failed is not None)) != 1:
        raise ConfigError("give one of --value, --pruned and --failed")
    opened = _held(study, trial, lease)
    state: Any = "complete" if value else "pruned" if pruned else "failed"
    if not opened.tell(trial, value, state=state, reason=failed or ""):
        console.print(f"trial {trial} was told before; nothing changed")


def _held(study: str, trial: int, lease: str | None) -> Study:
    from clew.tuning.study import Study

    opened = Study.open(study)
    if lease is not None:
        opened.check_lease(trial, lease)
    return opened


def _told(study: Study, each: Any) -> dict[str, Any]:
    names = [objective.metric for objective in study.config.objectives]
    values = dict(zip(names, each.values, strict=False))
    return {
        "trial": each.number,
        "values": values,
        "settings": each.settings,
        "run": str(study.folder.trials / each.name),
    }


@app.command()
def steer(
    given: Annotated[Path, typer.Option("--in", help="JSON with points, their losses, and opt_space (%IN).")],
    output: Annotated[Path, typer.Option("--out", help="Where the new points go (%OUT).")],
    number: Annotated[int, typer.Option("--n", help="How many are wanted (%NUM_POINTS).")],
    most: Annotated[int, typer.Option("--max", help="How many there may be altogether (%MAX_POINTS).")],
) -> None:
    """Propose points to PanDA's hyper-parameter optimisation: the steering command of phpo.

    \b
    Example:
      clew tune steer --in input.json --out output.json --n 4 --max 40
      phpo --steeringExec 'run --rm IMAGE clew tune steer --in %IN --out %OUT --n %NUM_POINTS --max %MAX_POINTS' ...
    """
    from clew.tuning import panda

    panda.write(output, panda.steer(panda.read(given), number=number, most=most))


@app.command()
def evaluate(
    recipe: Annotated[str, typer.Argument(help="The YAML with the settings and `tune.objective`.")],
    given: Annotated[Path, typer.Option("--in", help="JSON with the point.")] = Path("input.json"),
    files: Annotated[Path, typer.Option("--data", help="JSON with the list of input files.")] = Path("input_ds.json"),
    output: Annotated[Path, typer.Option("--out", help="Where status and loss go.")] = Path("output.json"),
    name: Annotated[
        list[str] | None, typer.Option(metavar="NAME=KEY", help="What a name of the point stands for. Repeatable.")
    ] = None,
    settings: Settings = None,
) -> None:
    """Judge one point for PanDA: the evaluation command of phpo. All files go to the working folder.

    \b
    Example:
      clew tune evaluate my.yaml --in input.json --out output.json --name lr=train.optimizer.lr
      phpo --evaluationExec 'clew tune evaluate my.yaml' --evaluationInput input.json --evaluationOutput output.json ...

    What fails gets a status other than 0 and a loss of 1e30; the command itself then ends with 0, as the grid wants it.
    """
    from clew.cli.runs.follow import following
    from clew.errors import ClewError, ConfigError
    from clew.settings import load_settings
    from clew.tuning import panda

    named = [each.partition("=")[::2] for each in name or ()]
    if not all(key for _, key in named):
        raise ConfigError("--name: expected NAME=KEY, for example --name lr=train.optimizer.lr")
    try:
        inputs = panda.read(files) if files.exists() else []
        loaded, point = load_settings(recipe, settings or ()), panda.read(given)
        with following() as begun:
            found = panda.evaluate(loaded, point, inputs, folder=Path.cwd(), names=dict(named), begun=begun)
    except ClewError as error:
        panda.write(output, {"status": error.exit_code, "loss": panda.WORST, "message": str(error)})
        raise
    panda.write(output, found)
    console.print(f"{bold(output)}: status {found['status']}, loss {found['loss']:.6g}  {found['message']}")
