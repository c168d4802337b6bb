"""`clew worker`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clew.cli.options import bold, console, parse_seconds
from clew.errors import ConfigError


def worker(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Where the master listens.")],
    token: Annotated[
        str | None, typer.Option(help="The first line of the master's token file.", envvar="CLEW_JOIN_TOKEN")
    ] = None,
    token_file: Annotated[Path | None, typer.Option(help="The file with it: RUN/token.")] = None,
    dataset: Annotated[Path | None, typer.Option(help="The dataset, where it is elsewhere here.")] = None,
    patience: Annotated[str, typer.Option(help="How long to look for a master that does not answer.")] = "10m",
) -> None:
    """Work for a training that was started with --listen, from this or any other machine.

    It gets the recipe, the settings and its share of the work from the master, which must prove that it has the key of
    the token. It may be killed at any time: what it had not finished is done by others. A master that was stopped and
    resumed is found again.

    \b
    Examples:
      clew train tracking --strategy downpour --listen 0.0.0.0:7700
      clew worker login1:7700 --token-file runs/tracking-001/token
      CLEW_JOIN_TOKEN=... clew worker login1:7700 --dataset /scratch/dataset
    """
    if token_file is not None:
        if not token_file.exists():
            raise ConfigError(f"{token_file}: no such file; it is in the run's folder at the master")
        token = token_file.read_text().partition("\n")[0]
    if not token:
        raise ConfigError("give the token: --token-file RUN/token, or the variable CLEW_JOIN_TOKEN")
    if token.startswith("clew_"):
        raise ConfigError("this is a token of a server; that of a training is in RUN/token, and begins with clewjoin_")
    if ":" not in address:
        raise ConfigError(f"'{address}' is no HOST:PORT; the master's address is in RUN/address")
    import torch

    from clew.training.asynchronous.elastic_workers import join
    from clew.training.asynchronous.messaging.join_token import JoinToken
    from clew.training.run_recipe import recipe_from_settings

    torch.set_num_threads(max(1, torch.get_num_threads()))
    done = join(
        address,
        JoinToken.parse(token),
        recipe_from_settings,
        dataset=dataset,
        patience=parse_seconds(patience, "--patience"),
        report=lambda message: console.print(message),
    )
    console.print(f"the training is over; {bold(f'{done:,}')} batches were trained on here")
