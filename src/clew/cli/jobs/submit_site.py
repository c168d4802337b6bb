"""`clew submit --on SITE` without a server: the job goes to the site directly, as `clew VERB --on SITE` does it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from clew.errors import ConfigError, nearest

if TYPE_CHECKING:
    from clew.cli.jobs.submit_options import SubmitOptions
    from clew.client.client import Client

_SERVER_ONLY = ("priority", "group", "json")
"""Options that only a server can use."""


def goes_directly(site: str, server: str | None) -> bool:
    """Whether a job goes to the site without a server: no agent can serve the site, or no server is known."""
    from clew.client.client import credentials
    from clew.jobs.sites import load_site, site_profiles

    if (site.endswith((".yaml", ".yml")) or site in site_profiles()) and not load_site(site).takes_jobs:
        return True
    try:
        credentials(server)
    except ConfigError:
        if server is not None:
            raise
        return True
    return False


def agent_site_name(site: str, client: Client) -> str:
    """The name that agents use for a site given by its name or by its profile's file.

    Raises:
        ConfigError: it is neither the site of an agent nor a profile of this machine.
    """
    from clew.jobs.sites import load_site, site_profiles, sites_folder

    if site.endswith((".yaml", ".yml")):
        return load_site(site).name
    names = {*site_profiles(), *(agent.slots.site for agent in client.agents() if agent.alive and agent.slots.site)}
    if site not in names:
        raise ConfigError(f"no site '{site}', of an agent or in {sites_folder()}{nearest(site, names)}")
    return site


def submit_directly(
    site: str, source: str, kind: str, options: dict[str, Any], resources: dict[str, Any], *, follow: bool
) -> None:
    """Do what `clew VERB --on SITE` does.

    Args:
        site: The site's name or profile.
        source: What the job is about: a recipe, a YAML, or a run for evaluate.
        kind: The kind of job.
        options: dataset, workers, epochs, settings and output.
        resources: nodes, cpus, gpus, memory, wall_time, requeue, dry_run, and the options of servers.
        follow: Whether to watch the job.

    Raises:
        ConfigError: an option that only a server can use.
    """
    from clew.cli.jobs.command_words import call_verb

    for name in _SERVER_ONLY:
        if resources.pop(name, None):
            raise ConfigError(f"--{name} needs a server, and none is known (`clew login`)")
    memory = resources.pop("memory")
    wall_time = resources.pop("wall_time")
    site_options = {
        **resources,
        "on": site,
        "follow": follow,
        "requeue": True if resources["requeue"] else None,
        "memory": memory,
        "wall_time": wall_time,
    }
    verb, verb_options = _VERBS[kind](source, options)
    call_verb(verb, **verb_options, **site_options)


def submit_script(site: str, options: SubmitOptions) -> None:
    """Submit a script to a site that takes whole tasks.

    Raises:
        ConfigError: Scripts go to this site only through a server, or an option that only a server can use.
    """
    from clew.cli.jobs import panda
    from clew.cli.jobs.on_site import SiteOptions
    from clew.jobs.sites import load_site

    profile = load_site(site)
    if profile.takes_jobs:
        raise ConfigError(f"a script goes to {site} only through a server: start one (`clew serve`) and an agent there")
    for name in _SERVER_ONLY:
        if getattr(options, "as_json" if name == "json" else name):
            raise ConfigError(f"--{name} needs a server, and {site} is used without one")
    if options.settings or options.dataset is not None:
        raise ConfigError("--set and --dataset: a script takes its own arguments, after --")
    if options.store is not None:
        raise ConfigError(f"--store: a script's run returns with the task of {site}, as run.tgz; leave it out")
    follow = True if options.wait or options.follow else None
    more = {"after": None, "requeue": options.requeue or None, "follow": follow, "dry_run": options.dry_run}
    panda.submit_script(
        SiteOptions(site, profile, {**options.resources(), **more}),
        options.recipe,
        options.arguments or (),
        workers=options.workers or 1,
        name=options.output,
    )


def _train(recipe: str, options: dict[str, Any]) -> tuple[Callable[..., None], dict[str, Any]]:
    from clew.cli.training.train import train

    return train, {"recipe": recipe, **options}


def _with_epochs(options: dict[str, Any]) -> dict[str, Any]:
    """The options of a verb that has no option for epochs."""
    epochs = options["epochs"]
    more = [] if epochs is None else [f"train.epochs={epochs}"]
    rest = {name: value for name, value in options.items() if name not in ("epochs", "settings", "workers")}
    return {**rest, "settings": [*(options["settings"] or ()), *more]}


def _tune(recipe: str, options: dict[str, Any]) -> tuple[Callable[..., None], dict[str, Any]]:
    from clew.cli.tuning.tune import run

    return run, {"recipe": recipe, **_with_epochs(options), "parallel": options["workers"], "spread": "array"}


def _prepare(recipe: str, options: dict[str, Any]) -> tuple[Callable[..., None], dict[str, Any]]:
    from clew.cli.data.prepare import prepare

    rest = _with_epochs(options)
    if rest.pop("dataset") is not None:
        raise ConfigError("--dataset: prepare makes a dataset; name it with --output")
    return prepare, {"recipe": recipe, **rest, "workers": options["workers"]}


def _evaluate(run: str, options: dict[str, Any]) -> tuple[Callable[..., None], dict[str, Any]]:
    from clew.cli.inference.evaluate import evaluate

    for name in ("epochs", "settings", "output"):
        if options[name]:
            raise ConfigError(f"--{'set' if name == 'settings' else name}: a run is evaluated with its own settings")
    return evaluate, {"run": run, "data": options["dataset"], "workers": options["workers"] or 1}


_VERBS: dict[str, Callable[[str, dict[str, Any]], tuple[Callable[..., None], dict[str, Any]]]] = {
    "train": _train,
    "tune": _tune,
    "prepare": _prepare,
    "evaluate": _evaluate,
}
