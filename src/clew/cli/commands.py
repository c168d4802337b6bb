"""The commands of `clew`, in the order in which help lists them."""

from __future__ import annotations

from typing import Any

from clew.cli.lazy_commands import LazyCommand, LazyGroup
from clew.cli.usage_errors import usage_errors


class Commands(LazyGroup):
    """All commands. A line here is the first paragraph of the command's help; a test compares the two."""

    lazy = {
        "demo": LazyCommand(
            "start.demo:demo",
            "Find tracks in synthetic events: generate, prepare, train, evaluate, report. About two minutes.",
        ),
        "init": LazyCommand(
            "start.init:init",
            "Write a recipe of your own that works as it is, with a test; or a YAML file of settings.",
        ),
        "prepare": LazyCommand("data.prepare:prepare", "Turn raw events into a dataset of HDF5 shards."),
        "train": LazyCommand("training.train:train", "Train a recipe's model on a dataset."),
        "worker": LazyCommand(
            "training.worker:worker",
            "Work for a training that was started with --listen, from this or any other machine.",
        ),
        "agent": LazyCommand(
            "jobs.agent:agent",
            "Run jobs of a server on this machine, under your own credentials. Start as many as there are machines.",
        ),
        "submit": LazyCommand(
            "jobs.submit:submit", "Submit a job to a server; an agent of yours, or of your group, runs it."
        ),
        "jobs": LazyCommand(
            "jobs.jobs:jobs",
            "List the jobs of a server, and those submitted to sites from this folder; or show one job of the server.",
        ),
        "follow": LazyCommand(
            "jobs.work_verbs:follow",
            "Watch a run or a job until it ends; Ctrl-C leaves it running. A job's exit code is that of this command.",
        ),
        "logs": LazyCommand("jobs.work_verbs:logs", "Print what a job or a run has printed."),
        "stop": LazyCommand(
            "jobs.work_verbs:stop",
            "Stop runs and jobs: what runs writes a checkpoint and ends, what waits never starts.",
        ),
        "retry": LazyCommand("jobs.jobs:retry", "Submit jobs again as new jobs, which start from the beginning."),
        "requeue": LazyCommand("jobs.jobs:requeue", "Continue jobs that ended early from their last checkpoint."),
        "evaluate": LazyCommand(
            "inference.evaluate:evaluate",
            "Evaluate a run's model on events it was not trained on, and add the metrics to its report.",
        ),
        "predict": LazyCommand(
            "inference.predict:predict",
            "Write the predictions of a run's model, or of an exported model: one row per event, in their order.",
        ),
        "export": LazyCommand(
            "inference.export:export",
            "Export a run's model: one file with the network, its weights and the scaling of its inputs.",
        ),
        "generate": LazyCommand(
            "inference.generate:generate", "Generate events with the trained model of a generative recipe."
        ),
        "trace": LazyCommand(
            "runs.trace:trace", "Show how every rank spent its time, and write one timeline of all ranks for a viewer."
        ),
        "compare": LazyCommand(
            "runs.compare:compare",
            "Compare runs: settings and code that differ, curves, final metrics with errors, speed.",
        ),
        "serve": LazyCommand(
            "server.serve:serve",
            "Start the server for runs, studies and jobs: a REST API and a dashboard at http://127.0.0.1:8470.",
        ),
        "login": LazyCommand(
            "server.login:login",
            "Save a server and your token for it. From then on your trainings are recorded there too.",
        ),
        "logout": LazyCommand(
            "server.login:logout",
            "Remove the server and the token from this machine. `clew token revoke` makes a token invalid.",
        ),
        "doctor": LazyCommand(
            "jobs.doctor:doctor",
            "Check everything that a run needs, and say what to do where something is wrong.",
        ),
        "tune": LazyCommand(
            "tuning.tune:app",
            "Search for good settings: run, show, best; for programs ask, report, tell; for PanDA steer, evaluate",
        ),
        "runs": LazyCommand("runs.runs:app", "Runs: list, show, compare, report; of a server: get, push."),
        "token": LazyCommand("server.token:app", "Tokens for the service: create, list, revoke."),
        "bench": LazyCommand(
            "bench.bench:app", "Measure scaling, strategies, and a node with the particle-flow workload."
        ),
        "site": LazyCommand("jobs.site:app", "Clusters: add, list and check profiles; list the jobs submitted there."),
        "data": LazyCommand(
            "data.data:app", "Events and datasets: generate, inspect, verify; copies to and from stores: get, put."
        ),
        "model": LazyCommand("inference.model:app", "Trained models: those of clew, and in a store: find, get, put."),
        "cache": LazyCommand(
            "data.cache:app", "Cached results of prepare, and cached inputs from stores: list, size, limit, prune."
        ),
        "config": LazyCommand("start.config:app", "Settings: show, schema."),
    }

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """Read the options before the name of the command."""
        with usage_errors():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        with usage_errors():
            return super().invoke(ctx)
