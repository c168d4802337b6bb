"""Settings of train. No torch here: the command line shows and checks them without it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from clew.core.config import Section
from clew.storage.locations import mask_secrets
from clew.storage.models.config import StoreConfig

Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Direction = Literal["minimize", "maximize"]

OPTIMIZERS = {
    "adam": "Adam",
    "adamw": "AdamW",
    "nadam": "NAdam",
    "radam": "RAdam",
    "adamax": "Adamax",
    "adagrad": "Adagrad",
    "adadelta": "Adadelta",
    "rmsprop": "RMSprop",
    "rprop": "Rprop",
    "sgd": "SGD",
}
"""Names in settings, and the classes of `torch.optim` they stand for."""


class OptimizerConfig(Section):
    """An optimiser of torch by name."""

    name: Literal[tuple(OPTIMIZERS)] = "adam"  # type: ignore[valid-type]
    lr: Positive = 1e-3
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    parameters: dict[str, Any] = {}
    """Its other arguments, by torch's names: `{momentum: 0.9, nesterov: true}`."""
    lr_batch: Count | None = None
    """The batch size that `lr` is meant for; default: whatever `batch_size` is."""
    lr_rule: Literal["auto", "linear", "sqrt", "none"] = "auto"
    """How `lr` follows a batch size other than `lr_batch`: linear with the batch (then a warm-up of 5% of the steps
    unless one is set), or with its square root. auto: linear for sgd, square root for the adaptive ones."""


class ScheduleConfig(Section):
    """The learning rate over the run."""

    name: Literal["constant", "linear", "cosine", "step", "plateau"] = "constant"
    """linear and cosine fall to `floor` at the end; step multiplies by `factor` every `epochs`; plateau does so after
    `epochs` validations in which `best.metric` did not get better."""
    warmup: Share | None = None
    """Share of the run's steps over which the rate rises from nothing first."""
    floor: Share = 0.01
    factor: Annotated[float, Field(gt=0, lt=1)] = 0.5
    epochs: Count = 10


class LoadingConfig(Section):
    """Where samples are while training, and which make a batch."""

    keep: Literal["memory", "compressed", "disk"] = "memory"
    """All in the memory of every worker; each worker's share in memory, compressed; or left on disk."""
    bucket: str | None = None
    """A ragged column: samples with about as many items of it share a batch, so that padding is small."""
    max_items: Count | None = None
    """Most items of `bucket` in a batch, counted as a padded rectangle, besides `batch_size`."""
    window: Count = 100
    """Batches that are sorted, or read from disk, together."""
    ahead: Annotated[int, Field(ge=0)] | None = None
    """Batches made ready in a thread; default: none for samples in memory on a CPU, else 2."""

    @model_validator(mode="after")
    def _fits(self) -> LoadingConfig:
        if self.max_items is not None and self.bucket is None:
            raise ValueError("max_items needs bucket: the column whose items are counted")
        return self


class BestConfig(Section):
    """Which validated weights are kept as `best`."""

    metric: str = "loss"
    direction: Direction = "minimize"


class EarlyStopping(Section):
    """End the training when a metric stops getting better."""

    metric: str | None = None
    """Default: that of `best`, with its direction."""
    direction: Direction | None = None
    patience: Count = 5
    """Validations without an improvement of more than `min_delta`."""
    min_delta: Annotated[float, Field(ge=0)] = 0.0


class Target(Section):
    """End the training when a metric is good enough."""

    metric: str
    value: float
    direction: Direction = "maximize"


class CentralConfig(Section):
    """How the asynchronous strategies exchange: workers with masters that hold the central weights."""

    masters: Annotated[int, Field(ge=0)] = 1
    """Processes besides the workers that hold a part of the weights each; 0: the only worker is its own master."""
    groups: Annotated[int, Field(ge=0)] = 0
    """Sub-masters, each with a group of workers, that exchange with the master themselves."""
    sync_every: Count | None = None
    """Batches between two exchanges; default: 1, for easgd 4, for diloco 20."""
    optimizer: OptimizerConfig | None = None
    """The master's. Default: downpour and backup use `train.optimizer` there, on gradients that workers send; diloco
    sgd with Nesterov momentum 0.9 and rate 0.7; downpour with `sync_every` above 1 adds what workers have learned."""
    overlap: bool = False
    """downpour and easgd: go on with the next batches while an exchange is under way."""
    transfer: Literal["float32", "bf16"] = "float32"
    """Number format in which updates and weights travel."""
    staleness: Count | None = None
    """Most updates between the weights an update was made from and those it changes: others wait for the slow."""
    warmup: Annotated[int, Field(ge=0)] = 0
    """Batches that one worker learns from alone before the others begin."""
    elasticity: Positive = 0.9
    """easgd: how strongly workers together pull at the centre."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """gem: of the steps whose energy is matched."""
    kappa: Positive = 1.0
    """gem: how much energy they may have together."""
    quorum: Annotated[float, Field(gt=0, le=1)] = 0.95
    """backup: the share of workers whose updates are waited for."""
    lease_seconds: Positive = 120.0
    """Without progress, after which a worker's batches go to another."""
    comm: Literal["auto", "mpi", "tcp"] = "auto"
    """How processes talk; auto: mpi where mpiexec or srun started them and mpi4py is there, else tcp."""
    listen: str | None = None
    """host:port at which workers may join and leave (`clew worker`) while the training goes on."""
    wait_for: Count = 1
    """With `listen`: workers that must be there before the first batch is given out."""

    def every(self, strategy: str) -> int:
        """Batches between two exchanges."""
        return self.sync_every or {"easgd": 4, "diloco": 20}.get(strategy, 1)


AVERAGING = ("easgd", "diloco", "backup")
"""Of the asynchronous strategies, those in which the steps of workers are averaged."""
CENTRAL = ("downpour", "easgd", "gem", "diloco", "backup")
"""The asynchronous strategies (backup waits for all but the slowest, by the same means)."""


class TrainConfig(Section):
    """How a run trains."""

    dataset: str = "dataset"
    epochs: Count = 10
    steps: Count | None = None
    """End after so many steps, if the epochs are not over before."""
    minutes: Positive | None = None
    """End after so long, if the epochs are not over before. The schedule still counts on all epochs."""
    batch_size: Count | Literal["auto", "largest"] = 64
    """Samples a step over all workers together, so that the result does not depend on how many there are.

    auto: the fastest, found in under a minute before the first step; largest: the largest that fits into memory."""
    accumulate: Count = 1
    """Parts in which a worker computes its share of a batch, one after the other: less memory, the same result."""
    replicas: Count | None = None
    """Train an ensemble: so many models that differ in their seed alone, in packs."""
    workers: Annotated[int, Field(ge=0)] = 1
    """Processes that learn; none but where others may join (`central.listen`)."""
    strategy: Literal["single", "allreduce", "sharded", "pipeline", "downpour", "easgd", "gem", "diloco", "backup"] = (
        "allreduce"
    )
    """How workers agree; one worker alone needs no agreement."""
    central: CentralConfig = CentralConfig()
    """For downpour, easgd, gem, diloco and backup. There a batch is one worker's."""
    buffers: Literal["average", "synchronize"] = "average"
    """Batch-norm statistics: each worker's own, averaged for validation; or those of the whole batch in every step."""
    compress: Literal["none", "bf16", "fp16"] = "none"
    """Number format in which allreduce sends gradients."""
    microbatches: Count = 4
    """Parts in which a batch passes through the stages of a pipeline."""
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    clip: Positive | None = None
    """Largest norm of the gradient."""
    ema: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Keep a moving average of the weights with this memory (0.999, say); it is what is validated and saved."""
    precision: Literal["float32", "bf16", "fp16"] = "float32"
    """Of the forward pass, by autocast; fp16 scales the loss."""
    compile: bool = False
    """torch.compile the model."""
    record: bool = True
    """On one NVIDIA GPU, record a step and replay it, if the recipe supports it (`Recipe.graph_capacity`)."""
    deterministic: bool = False
    """Use torch's reproducible algorithms alone: the same machine and threads give the same bits. May be slower."""
    loading: LoadingConfig = LoadingConfig()
    seed: int = 0
    order: int | None = None
    """Seed of the order of the samples; default: `seed`. Trainings that share it see the same batches."""
    best: BestConfig = BestConfig()
    early_stopping: EarlyStopping | None = None
    target: Target | None = None
    threads: Count | None = None
    """Per worker; default: the cores there are, shared among the workers of this machine."""
    validation: Literal["shared", "background", "thread"] = "shared"
    """All workers validate together at the end of an epoch; or a spare process does, or (asynchronous strategies) a
    thread of the master, while training goes on."""
    trace: bool = True
    """Keep a timeline of every worker (`clew trace RUN`)."""
    monitor_seconds: Positive | None = 5.0
    """Between two looks at processor, memory, device and power; null for none."""
    writers: tuple[Literal["tensorboard", "mlflow"], ...] = ()
    """Who else is told of losses and metrics."""
    checkpoint_minutes: Positive = 5.0
    """Between two states to go on from; there is always one at the end of an epoch, and when told to stop."""
    keep_checkpoints: Count = 2
    time_limit_minutes: Positive | None = None
    """Stop, ready to be resumed, after so long. The end of a Slurm job counts by itself."""
    store: StoreConfig | None = None
    """Keep the model, plots and report in a store when the run has finished."""
    log_every: Count | None = None
    """Steps between two records; default: as many as half a second takes."""

    @model_validator(mode="after")
    def _fits(self) -> TrainConfig:
        if mask_secrets(self.dataset) != self.dataset:
            raise ValueError(
                "dataset has a password or token in it, and settings are written down; use the environment"
            )
        told = _misfit(self) if self.strategy in CENTRAL else _misfit_plain(self)
        if told:
            raise ValueError(told)
        return self

    @property
    def processes(self) -> int:
        """Workers, and masters besides; one master alone where workers come by themselves."""
        if self.strategy in CENTRAL and self.central.listen:
            return 1
        return self.workers + (self.central.masters + self.central.groups if self.strategy in CENTRAL else 0)

    @property
    def size(self) -> int:
        """The batch size, once it is known."""
        assert isinstance(self.batch_size, int), "found before anything is made from it"
        return self.batch_size


def _misfit_plain(config: TrainConfig) -> str:
    """Why settings do not go together, where workers need no master."""
    if config.workers == 0:
        return "workers must be at least 1"
    if config.replicas is not None and config.workers != 1:
        return f"replicas are trained in packs, a process each: workers cannot be {config.workers}"
    if config.validation == "thread":
        return f"validation thread goes with {', '.join(CENTRAL)}; use background"
    if config.central != CentralConfig():
        return f"central is for {', '.join(CENTRAL)}; strategy is {config.strategy}"
    return ""


def _misfit(config: TrainConfig) -> str:
    """Why settings do not go together, where a master holds the weights."""
    central, strategy = config.central, config.strategy
    rules = {
        "central.masters 0 is for one worker alone": central.masters == 0
        and (config.workers != 1 or central.groups or central.listen),
        "workers 0 needs central.listen: an address at which others may join": config.workers == 0
        and not central.listen,
        "central.overlap goes with downpour and easgd": central.overlap and strategy not in ("downpour", "easgd"),
        "central.groups goes with downpour, easgd and gem, and with one master": central.groups
        and (strategy in ("diloco", "backup") or central.masters != 1),
        f"central.groups is {central.groups}, but there are {config.workers} workers": central.groups > config.workers,
        "central.staleness goes with downpour and easgd, one master and no groups": central.staleness
        and (strategy not in ("downpour", "easgd") or central.masters != 1 or central.groups),
        "central.listen needs one master and no groups": central.listen and (central.masters != 1 or central.groups),
        "central.wait_for goes with central.listen": central.wait_for > 1 and not central.listen,
        f"ema cannot be used with {strategy}": config.ema,
        f"replicas cannot be used with {strategy}": config.replicas,
        "buffers synchronize goes with allreduce and sharded": config.buffers == "synchronize",
        f"precision fp16 cannot be used with {strategy}; use bf16": config.precision == "fp16",
    }
    return next((told for told, wrong in rules.items() if wrong), "")
