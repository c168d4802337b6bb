"""The pages whose commands the tests of this folder run, and what makes these commands small."""

from __future__ import annotations

from dataclasses import dataclass

from tests.pages.elsewhere import starts_with

TRAIN = ("...clew train tracking", "--epochs 1 --set model.hidden=8")
"""Words that make a training of the recipe tracking short."""


@dataclass(frozen=True)
class Page:
    """How the commands of a page are run.

    Attributes:
        presumes: what is in the working folder before the first command: names of functions in `scenes.py`.
        files: files that the page shows: the name, the language and the number of the block.
        replaced: text of commands and what is run in its place, in this order.
        added: the start of commands, and words that are put behind them.
        before: the start of commands, and lines that are run before them.
        background: the start of commands that do not end, and what they print, or the file they make, when they work.
    """

    presumes: tuple[str, ...] = ()
    files: tuple[tuple[str, str, int], ...] = ()
    replaced: tuple[tuple[str, str], ...] = ()
    added: tuple[tuple[str, str], ...] = ()
    before: tuple[tuple[str, tuple[str, ...]], ...] = ()
    background: tuple[tuple[str, str], ...] = ()

    def line(self, command: str) -> str:
        """What is run for a command of the page."""
        line = command
        for old, new in self.replaced:
            line = line.replace(old, new)
        words = [words for start, words in self.added if starts_with(command, start)]
        return " ".join([line, *words])


SERVE = "clew serve --no-agent --port {new port}"
SLURM = "clew site add mycluster --set scheduler=slurm"
LOGIN = "clew login http://127.0.0.1:{port} < token"
SERVED = ("clew serve", "clew serves")
API = 'curl -sf -H "Authorization: Bearer $(head -1 token)"'
GROUP = f"""{API} --json '{{"name": "trackers"}}' http://127.0.0.1:{{port}}/api/v1/groups"""
MEMBERS = f"{API} -X PUT http://127.0.0.1:{{port}}/api/v1/groups/trackers/members"
AGENT = "serves http"
HERE = ("s3://bucket", "file://{here}/bucket")
TWO = (("--workers 4", "--workers 2"), ("--workers 8", "--workers 2"), ("1,2,4", "1,2"))
SMALL_BENCH = ("clew bench scale tracking", "--set model.hidden=8 --epochs 1")

RUN_HERE: dict[str, Page] = {
    "docs/howto/agents.md": Page(
        presumes=("dataset", "study_file"),
        replaced=(("--idle 10m", "--idle 1s"), ("/shared/data", "{here}/dataset")),
        before=(
            ("clew agent$", (SERVE, LOGIN)),
            ("clew agent --group", (GROUP, f"{MEMBERS}/$(id -un)")),
            ("clew submit", (SLURM,)),
        ),
        added=(("clew agent", "--folder agent-{unique} --name agent-{unique}"), ("clew submit", "--dry-run")),
        background=(SERVED, ("clew agent --group", AGENT), ("clew agent --cpus", AGENT), ("clew agent$", AGENT)),
    ),
    "docs/howto/async.md": Page(
        presumes=("dataset",),
        replaced=(
            *TWO,
            ("-n 5", "-n 2"),
            ("0.0.0.0:7700", "127.0.0.1:{new port}"),
            ("master-host:7700", "127.0.0.1:{port}"),
        ),
        added=(TRAIN,),
        background=(
            ("clew train...--output runs/elastic", "runs/elastic/token"),
            ("clew train...--listen", "workers join with"),
        ),
    ),
    "docs/howto/bench.md": Page(
        replaced=(*TWO, ("--events 2000", "--events 100"), ("8,64", "8 --workers 1,2")),
        added=(SMALL_BENCH, ("clew bench scale...--weak", "--workers 1,2")),
        before=(
            (
                "clew bench scale",
                (
                    "clew data generate tracking --events 100 --output before",
                    "clew prepare tracking --input before --output dataset",
                ),
            ),
        ),
    ),
    "docs/howto/choose-strategy.md": Page(presumes=("dataset",), replaced=TWO, added=(TRAIN, SMALL_BENCH)),
    "docs/howto/containers.md": Page(
        presumes=("dataset", "study_file"),
        before=(
            ("clew train my.yaml --on mycluster", (SLURM,)),
            (
                "clew train my.yaml --on panda",
                ("clew site add panda --set scheduler=panda --set container=docker://a/b --set panda.out=user.me",),
            ),
        ),
        added=(("clew train my.yaml --on mycluster", "--dry-run"),),
    ),
    "docs/howto/dashboard.md": Page(added=(("clew serve", "--port {new port}"),), background=(SERVED,)),
    "docs/howto/export.md": Page(presumes=("dataset", "two_runs", "keras_run", "tagger_run")),
    "docs/howto/fine-tune.md": Page(
        presumes=("dataset", "jet_dataset"),
        replaced=(("--replicas 100", "--replicas 2"), ("jetfeatures --dataset dataset", "jetfeatures --dataset jets")),
        added=(("clew train", "--epochs 1"),),
    ),
    "docs/howto/jobs-data.md": Page(
        presumes=("own_script",),
        replaced=(HERE,),
        before=(
            (
                "clew submit my_recipe.py --dataset s3:",
                (
                    "clew serve --port {new port}",
                    LOGIN,
                    "clew init my_recipe",
                    "clew data generate my_recipe.py --events 200 --output events",
                    "clew prepare my_recipe.py --input events --output bucket/samples",
                ),
            ),
        ),
        added=(("clew submit my_recipe.py", "--epochs 1"), ("clew submit", "--wait")),
        background=(SERVED,),
    ),
    "docs/howto/jobs.md": Page(
        presumes=("data", "dataset", "net", "study_file"),
        replaced=(
            ("127.0.0.1:8470", "127.0.0.1:{port} < token"),
            ("--epochs 5", "--epochs 1 --set model.hidden=8"),
            ("'/data/*.h5'", "'{here}/a*.h5' --epochs 1"),
            ("clew stop 12", "clew stop 2"),
            ("jobs 12", "jobs 3"),
            ("follow 12", "follow 3"),
            ("logs 12", "logs 3"),
        ),
        added=(("clew serve", "--port {new port}"),),
        background=(SERVED,),
    ),
    "docs/howto/models.md": Page(presumes=("net", "program", "keras_files"), added=(("clew train", "--epochs 1"),)),
    "docs/howto/packed-trials.md": Page(
        presumes=("dataset", "study_file"),
        replaced=(("--trials 256", "--trials 2"),),
    ),
    "docs/howto/panda.md": Page(presumes=("panda", "study_file", "dataset")),
    "docs/howto/predict.md": Page(
        presumes=("two_runs", "dataset", "other_dataset", "real_events", "tagger_run"), replaced=TWO
    ),
    "docs/howto/prepare-cache.md": Page(presumes=("events",)),
    "docs/howto/prepare.md": Page(presumes=("events", "years"), replaced=TWO),
    "docs/howto/processes.md": Page(
        presumes=("dataset",),
        replaced=(*TWO, ("-n 4", "-n 2"), ("--nproc-per-node 4", "--nproc-per-node 2")),
        added=(TRAIN,),
    ),
    "docs/howto/resume.md": Page(
        presumes=("dataset",),
        replaced=(("--epochs 40", "--epochs 2"),),
        added=(
            ("clew train tracking --dataset dataset --output runs/long", "--epochs 100000 --set model.hidden=8"),
            ("clew train --resume runs/long$", "--epochs 1"),
            ("clew train tracking...--time-limit", "--epochs 1 --set model.hidden=8"),
            ("clew train tracking...--from", "--epochs 1 --set model.hidden=8"),
        ),
        before=(("clew train --resume runs/long$", ("clew stop runs/long",)),),
        background=(("clew train...--output runs/long", "epoch"),),
    ),
    "docs/howto/runs.md": Page(
        presumes=("two_trainings",),
        replaced=(("get 17", "get 1 --output again"),),
        before=(("clew runs list --server", (SERVE, LOGIN, "clew runs push runs/tracking-001")),),
        background=(SERVED,),
    ),
    "docs/howto/service.md": Page(
        presumes=("dataset", "study_file"),
        replaced=(
            ("login http://127.0.0.1:8470", "login http://127.0.0.1:{port} < token"),
            ("127.0.0.1:8470", "127.0.0.1:{port}"),
            ("/srv/clew", "srv"),
            ("/srv/", "{here}/"),
            ("cp -a /backup/artefacts", "cp -a srv/artefacts"),  # rsync, which copies them, need not be installed
            ("/backup/", "{here}/"),
            ("file:///eos/experiment/clew", "file://{here}/store --folder other"),
        ),
        added=(("clew serve", "--port {new port}"), ("clew train", "--epochs 1")),
        before=(
            ("clew runs push runs/tracking-001", (LOGIN,)),
            ("clew runs push runs --tag", (GROUP,)),
        ),
        background=(SERVED,),
    ),
    "docs/howto/sites.md": Page(
        presumes=("events", "dataset", "study_file", "two_runs"),
        added=(
            ("clew tune...--on mycluster", "--as array"),
            ("clew...--on mycluster", "--dry-run"),
            ("clew...--on pool", "--dry-run"),
        ),
    ),
    "docs/howto/slow-training.md": Page(presumes=("two_runs", "dataset"), added=(TRAIN,)),
    "docs/howto/storage.md": Page(
        presumes=("bucket", "two_runs"),
        replaced=(
            ("s3://bucket/models/tracking-001-1a2b3c4d", "file://{here}/bucket/models/$(ls bucket/models | tail -1)"),
            HERE,
        ),
        added=(TRAIN,),
    ),
    "docs/howto/train.md": Page(
        presumes=("dataset", "net", "root_files"),
        replaced=(("cuda:1", "cpu"), *TWO),
        added=(
            TRAIN,
            ("clew train tracking...--detach", "--epochs 100000 --set model.hidden=8"),
            ("clew train --model", "--epochs 1"),
            ("clew train --resume", "--epochs 1"),
        ),
        background=(("clew follow", "epoch"),),
    ),
    "docs/howto/tune-machines.md": Page(
        presumes=("dataset", "study_file", "study_file_too"),
        replaced=(
            ("http://head:8470", "http://127.0.0.1:{port}"),
            ("--cpus 2 --gpus 1 --follow", "--cpus 1000"),
            ("--study 3", "--study 1"),
            (" 12", " 1"),
            ("studies/mine 7", "studies/mine 0"),
        ),
        added=(("clew serve", "--port {new port}"), ("clew agent", "--folder agent-{unique}")),
        before=(("clew agent --server", (LOGIN,)),),
        background=(SERVED, ("clew agent", AGENT)),
    ),
    "docs/howto/tune.md": Page(
        presumes=("dataset", "study_file"),
        replaced=(("--trials 40", "--trials 2"), ("--trials 80", "--trials 3"), ("-n 9", "-n 3")),
        before=(("clew tune run...--on", (SLURM,)),),
        added=(("clew tune run...--on", "--as array --dry-run"),),
    ),
    "docs/index.md": Page(presumes=("net", "root_files"), added=(("clew train", "--epochs 1"),)),
    "docs/reference/recipes/fastsim.md": Page(
        files=(("gan.yaml", "yaml", 0),),
        replaced=(
            ("--events 20000", "--events 230"),
            ("--workers 1,2", "--workers 2"),
            ("--events 100000 --energy 1:100", "--events 32 --energy 5:50"),
            ("generated.h5", "showers.h5"),
            ("geant4.h5", "events"),
        ),
        added=(
            ("clew train", "--epochs 1 --set quality.seeds=0"),
            ("clew evaluate...--against", "--set quality.seeds=0"),
            ("clew bench scale", "--epochs 1"),
            ("clew tune run", "--trials 1 --set train.epochs=1"),
        ),
    ),
    "docs/reference/recipes/lartpc-generator.md": Page(
        replaced=(("--events 1000", "--events 5"), ("--events 100 ", "--events 2 "))
    ),
    "docs/reference/recipes/lartpc.md": Page(
        replaced=(*TWO, ("--events 1000", "--events 12"), ("--workers 1,2", "--workers 2")),
        added=(("clew train", "--epochs 1"), ("clew bench scale", "--epochs 1")),
    ),
    "docs/reference/recipes/tracking-acts.md": Page(
        replaced=(
            ("--events 400", "--events 20"),
            ("--events 32", "--events 12"),
            ("train.epochs=16", "train.epochs=1"),
            ("gun.pileup=100", "gun.pileup=2"),
        ),
        added=(("clew train triplets", "--epochs 1"),),
    ),
    "docs/reference/recipes/tracking.md": Page(
        replaced=(("--events 1000", "--events 40"),),
        added=(("clew train", "--epochs 1"),),
    ),
    "docs/start/install.md": Page(),
}
"""Pages by their path. Commands that a table of `elsewhere.py` names are left out."""
