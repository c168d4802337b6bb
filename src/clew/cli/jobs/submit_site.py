"""`clew submit --on SITE` where no server comes between: the verb itself is handed in there."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from clew.errors import ConfigError, nearest

if TYPE_CHECKING:
    from clew.client.client import Client

_VERBS = {
    "train": ("train",),
    "tune": ("tune", "run", "--as", "array"),
    "prepare": ("prepare",),
    "evaluate": ("evaluate",),
}
_NAMES = {
    "tune": {"--workers": "--parallel"},
    "evaluate": {"--dataset": "--data"},
}
"""What some verbs call an option otherwise."""


def direct(site: str, server: str | None) -> bool:
    """Whether a job goes to the site without a server: it takes tasks only, or no server is known."""
    from clew.client.client import credentials
    from clew.jobs import sites as sites

    if (site.endswith((".yaml", ".yml")) or site in sites.site_profiles()) and sites.load_site(
        site
    ).scheduler == "panda":
        return True
    try:
        credentials(server)
    except ConfigError:
        if server is not None:
            raise
        return True
    return False


def known_as(site: str, client: Client) -> str:
    """What agents call a site that was given by its name, or by its profile's file.

    Raises:
        ConfigError: neither an agent that is there nor a profile of this machine.
    """
    from clew.jobs import sites as sites

    if site.endswith((".yaml", ".yml")):
        return sites.load_site(site).name
    known = {*sites.site_profiles(), *(each.slots.site for each in client.agents() if each.alive and each.slots.site)}
    if site not in known:
        raise ConfigError(f"no site '{site}', of an agent or in {sites.sites_folder()}{nearest(site, known)}")
    return site


def hand_in(site: str, what: str, kind: str, options: dict[str, Any], needs: dict[str, Any], *, follow: bool) -> None:
    """Do as `clew VERB --on SITE` does; `needs` are altogether, the verbs' options a process and a node.

    Raises:
        ConfigError: an option that only a server heeds.
    """
    for name in ("priority", "group", "json"):
        if needs.pop(name, None):
            raise ConfigError(f"--{name} goes through a server, and none is known (`clew login`)")
    words = [*_words(kind, what, options), "--on", site, *_asked(kind, what, options, needs)]
    _call([*words, "--follow" if follow else "--no-follow"])


def _words(kind: str, what: str, options: dict[str, Any]) -> list[str]:
    verb, *rest = _VERBS[kind]
    words = [verb, *rest[:1], what, *rest[1:]] if kind == "tune" else [verb, what]
    if kind != "train" and options["--epochs"] is not None:
        added = [*(options["--set"] or ()), f"train.epochs={options['--epochs']}"]
        options = {**options, "--epochs": None, "--set": added}
    for name, value in options.items():
        option = _NAMES.get(kind, {}).get(name, name)
        for each in value if isinstance(value, list) else [value]:
            words += [] if each is None else [option, str(each)]
    return words


def _asked(kind: str, what: str, options: dict[str, Any], needs: dict[str, Any]) -> list[str]:
    nodes, words = needs["nodes"] or 1, list[str]()
    words += ["--nodes", str(nodes)] if needs["nodes"] else []
    words += ["--cpus", str(math.ceil(needs["cpus"] / _ranks(kind, what, options)))] if needs["cpus"] else []
    words += ["--gpus", str(math.ceil(needs["gpus"] / nodes))] if needs["gpus"] is not None else []
    words += ["--memory", f"{math.ceil(needs['memory'] / nodes / 2**20)}M"] if needs["memory"] else []
    words += ["--wall-time", f"{needs['wall']:g}s"] if needs["wall"] else []
    return [*words, *(["--requeue"] if needs["requeue"] else []), *(["--dry-run"] if needs["dry_run"] else [])]


def _ranks(kind: str, what: str, options: dict[str, Any]) -> int:
    if kind != "train":
        return 1
    from clew import settings
    from clew.cli.options import overrides

    return settings.load_settings(
        what, overrides(options["--set"], train__workers=options["--workers"])
    ).train.processes


def _call(words: Sequence[str]) -> None:
    from clew.cli.main import command

    sys.argv[1:] = words  # which is what a site is handed
    command()(list(words), standalone_mode=True)
