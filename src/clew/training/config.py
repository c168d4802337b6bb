"""The settings of a training (`TrainConfig`, the section `train` of a settings file).

This module does not import torch: the command line shows and checks settings without it.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, ValidatorFunctionWrapHandler, field_serializer, field_validator, model_validator

from clew.core.config import Section
from clew.core.metric_direction import Direction, check_direction, natural_direction
from clew.storage.locations import mask_secrets
from clew.storage.models.config import StoreConfig
from clew.training.asynchronous.rules import make_rule
from clew.training.asynchronous.rules.backup import BackupSettings
from clew.training.asynchronous.rules.easgd import EasgdSettings
from clew.training.asynchronous.rules.gem import GemSettings
from clew.training.strategy_problems import asynchronous_problem, synchronous_problem
from clew.training.strategy_table import (
    STRATEGIES,
    StrategyTraits,
    installed_strategies,
    strategy_traits,
)

Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]

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
"""Names used in settings, and the class of `torch.optim` that each one selects."""


class OptimizerConfig(Section):
    """An optimiser of torch, selected by name."""

    name: Literal[tuple(OPTIMIZERS)] = "adam"  # type: ignore[valid-type]
    """The optimiser."""
    lr: Positive = 1e-3
    """Learning rate."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Strength of the penalty on large weights."""
    parameters: dict[str, Any] = {}
    """Further arguments of the optimiser, with the names that torch uses: `{momentum: 0.9, nesterov: true}`."""
    lr_batch: Count | None = None
    """The batch size for which `lr` is meant. Default: `batch_size`."""
    lr_rule: Literal["auto", "linear", "sqrt", "none"] = "auto"
    """How `lr` is scaled for a batch size other than `lr_batch`. linear: in proportion (with a warm-up of 5% of the
    steps unless `schedule.warmup` is set). sqrt: with the square root. auto: linear for sgd, sqrt for all others."""


class ScheduleConfig(Section):
    """How the learning rate changes during the run."""

    name: Literal["constant", "linear", "cosine", "step", "plateau"] = "constant"
    """linear and cosine decrease to `floor` at the end. step multiplies by `factor` every `epochs` epochs. plateau
    multiplies by `factor` after `epochs` validations without an improvement of `best.metric`."""
    warmup: Share | None = None
    """Fraction of the steps, at the start, during which the rate rises from zero."""
    floor: Share = 0.01
    """Final rate of linear and cosine, as a fraction of the configured rate."""
    factor: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """Factor of step and plateau."""
    epochs: Count = 10
    """Number of epochs (step) or validations (plateau) before the rate is multiplied."""


class LoadingConfig(Section):
    """Where samples are stored during training, and how batches are formed."""

    keep: Literal["memory", "compressed", "disk"] = "memory"
    """memory: every worker holds all samples. compressed: its share, compressed. disk: read when they are needed."""
    bucket: str | None = None
    """A ragged column. Samples with a similar number of items in it go into one batch, which keeps padding small."""
    max_items: Count | None = None
    """Upper limit of items of `bucket` per batch, counted with padding, in addition to `batch_size`."""
    share: Literal["items", "samples"] = "items"
    """How workers share a batch in memory: with about the same work (`Recipe.sample_costs`), or as many samples."""
    window: Count = 100
    """Number of batches that are sorted, or read from disk, together."""
    ahead: Annotated[int, Field(ge=0)] | None = None
    """Number of batches prepared in advance by a thread. Default: 0 for samples in memory on a CPU, otherwise 2."""

    @model_validator(mode="after")
    def _check_combination(self) -> LoadingConfig:
        if self.max_items is not None and self.bucket is None:
            raise ValueError("max_items needs bucket, the column whose items are counted")
        return self


class BestConfig(Section):
    """Which validated weights are saved as `best`."""

    metric: str = "loss"
    """A metric of the validation."""
    direction: Direction | None = None
    """`minimize` or `maximize`. Default: that of the metric, if its name tells it."""

    @model_validator(mode="after")
    def _check_direction(self) -> BestConfig:
        check_direction(self.metric, self.direction)
        return self


class EarlyStopping(Section):
    """End the training when a metric no longer improves."""

    metric: str | None = None
    """Default: `best.metric`, with its direction."""
    direction: Direction | None = None
    """`minimize` or `maximize`. Default: that of the metric, if its name tells it."""
    patience: Count = 5
    """Number of validations without an improvement of more than `min_delta`."""
    min_delta: Annotated[float, Field(ge=0)] = 0.0
    """Smallest change that counts as an improvement."""

    @model_validator(mode="after")
    def _check_direction(self) -> EarlyStopping:
        if self.metric is not None:
            check_direction(self.metric, self.direction)
        return self


class Target(Section):
    """End the training when a metric reaches a value."""

    metric: str
    """A metric of the validation."""
    value: float
    """The value to reach."""
    direction: Direction | None = None
    """`minimize` or `maximize`. Default: that of the metric, if its name tells it, otherwise maximize."""

    @property
    def goal(self) -> Direction:
        """The direction in which the metric improves."""
        return self.direction or natural_direction(self.metric) or "maximize"

    @model_validator(mode="after")
    def _check_direction(self) -> Target:
        check_direction(self.metric, self.direction)
        return self


class AsynchronousConfig(EasgdSettings, GemSettings, BackupSettings):
    """Settings of the asynchronous strategies, in which workers exchange with masters that hold the central weights.

    The settings of a single rule are declared in its file, in `clew.training.asynchronous.rules`.
    """

    masters: Annotated[int, Field(ge=0)] = 1
    """Number of processes, in addition to the workers, that each hold a part of the weights. 0: the only worker also
    acts as the master."""
    groups: Annotated[int, Field(ge=0)] = 0
    """Number of sub-masters. Each one serves a group of workers and exchanges with the master."""
    sync_every: Count | None = None
    """Number of batches between two exchanges. Default: 4 for easgd, 20 for diloco, otherwise 1."""
    updates: Literal["auto", "gradients", "steps"] = "auto"
    """What workers of downpour and backup send. gradients: of each batch, to which the master applies its optimiser.
    steps: the change of the weights by the workers' own optimisers. auto: gradients, unless `sync_every` is above 1 or
    the recipe's step alternates between optimisers or brings its own, as adversarial training does."""
    optimizer: OptimizerConfig | None = None
    """The optimiser of the master. Default: for downpour and backup `train.optimizer`, applied to the gradients that
    workers send; for diloco sgd with Nesterov momentum 0.9 and rate 0.7. If workers of downpour or backup send steps,
    these are added."""
    parameters: dict[str, Any] = {}
    """Settings of a rule of another package."""
    overlap: bool = False
    """downpour and easgd: continue with the next batches during an exchange."""
    transfer: Literal["float32", "bf16"] = "float32"
    """Number format in which updates and weights are sent."""
    staleness: Count | None = None
    """Upper limit of the number of updates applied between reading the weights and applying an update computed from
    them. Fast workers wait for slow ones."""
    warmup: Annotated[int, Field(ge=0)] = 0
    """Number of batches on which one worker trains alone before the others start."""
    lease_seconds: Positive = 120.0
    """Seconds without progress after which the batches of a worker are assigned to another one."""
    comm: Literal["auto", "mpi", "tcp"] = "auto"
    """How processes communicate. auto: mpi if mpiexec or srun started them and mpi4py is installed, otherwise tcp."""
    listen: str | None = None
    """host:port at which workers may join and leave (`clew worker`) during the training."""
    wait_for: Count = 1
    """With `listen`: number of workers that must have joined before the first batch is assigned."""


class TrainConfig(Section):
    """The settings of a training."""

    dataset: str = "dataset"
    """Folder of the dataset, or its URL in a store."""
    epochs: Count = 10
    """Number of passes over the training data."""
    steps: Count | None = None
    """End after this number of steps, if all epochs have not finished before."""
    minutes: Positive | None = None
    """End after this many minutes, if all epochs have not finished before. The schedule is computed for all epochs."""
    batch_size: Count | Literal["auto", "largest"] = 64
    """Samples per step, over all workers together, so that the result does not depend on the number of workers.

    auto: the fastest size, measured in less than a minute before the first step. largest: the largest size that fits
    into memory."""
    accumulate: Count = 1
    """Number of parts in which a worker computes its share of a batch: less memory, the same result."""
    start_from: str | None = None
    """Weights to start from, instead of new ones: a run (its best weights), a model in a store, or a .safetensors, .pt
    or .pth file with the weights of the same model."""
    freeze: tuple[str, ...] = ()
    """Parameters that keep the weights of `start_from`, as patterns of their names: `["encoder.*", "*.bias"]`. The
    others are trained."""
    replicas: Count | None = None
    """Train an ensemble of this many models, which differ only in their seed. They are trained in packs."""
    workers: Annotated[int, Field(ge=0)] = 1
    """Number of training processes. 0 is allowed only if workers may join later (`asynchronous.listen`)."""
    strategy: Literal[tuple(STRATEGIES)] = "allreduce"  # type: ignore[valid-type]
    """How workers combine their updates. A single worker uses none of them. Other packages may add strategies."""
    asynchronous: AsynchronousConfig = AsynchronousConfig()
    """For downpour, easgd, gem, diloco and backup. With these, `batch_size` is that of one worker."""
    buffers: Literal["average", "synchronize"] = "average"
    """Batch-norm statistics. average: each worker has its own, which are averaged for validation. synchronize: those of
    the global batch, in every step."""
    compress: Literal["none", "bf16", "fp16"] = "none"
    """Number format in which allreduce sends gradients."""
    microbatches: Count = 4
    """Number of parts in which a batch passes through the stages of a pipeline."""
    split_points: tuple[str, ...] = ()
    """For pipeline: names of modules with which a stage may start, `["encoder.layer3", "head"]`. Of more names than are
    needed, those that make the stages about equally large are used. Default: any entry of an `nn.Sequential`."""
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    clip: Positive | None = None
    """Upper limit of the gradient norm."""
    ema: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Decay of an exponential moving average of the weights, for example 0.999. The average is validated and saved."""
    device: str = "auto"
    """Where workers compute: auto, cpu, cuda, cuda:1, mps or another device of torch. auto: the accelerator of the
    machine, or the CPU if there is none. Without a number, the workers of a machine get its devices in turn."""
    precision: Literal["float32", "bf16", "fp16"] = "float32"
    """Number format of the forward pass, by autocast. fp16 also scales the loss."""
    compile: bool = False
    """Apply torch.compile to the model."""
    record: bool | Literal["allreduce"] = True
    """Record a step as a CUDA graph and replay it, if the recipe supports it (`Recipe.graph_capacity`). true: on one
    NVIDIA GPU. allreduce: also with several workers of allreduce; this was not run on several GPUs yet."""
    deterministic: bool = False
    """Use only reproducible algorithms of torch: the same machine and number of threads give the same bits. May be
    slower."""
    loading: LoadingConfig = LoadingConfig()
    seed: int = 0
    """Seed of the initial weights and of the order of the samples."""
    order: int | None = None
    """Seed of the order of the samples. Default: `seed`. Trainings with the same value use the same batches."""
    best: BestConfig = BestConfig()
    early_stopping: EarlyStopping | None = None
    """End when a metric no longer improves. null: train all epochs."""
    target: Target | None = None
    """End when a metric reaches a value. null: no such value."""
    threads: Count | None = None
    """CPU threads per worker. Default: the available cores, divided among the workers of this machine."""
    validation: Literal["shared", "background", "thread"] = "shared"
    """shared: all workers validate together at the end of an epoch. background: a separate process validates while
    training continues. thread: a thread of the master does (asynchronous strategies)."""
    metric_workers: Annotated[int, Field(ge=0)] | None = None
    """Processes that compute the metrics of validations and evaluations while the network computes the next batch. They
    start when metrics have taken a second. Default: on an accelerator the available cores but one, divided among the
    workers of this machine; none on CPUs."""
    trace: bool = True
    """Write a timeline of every worker (`clew trace RUN`)."""
    monitor_seconds: Positive | None = 5.0
    """Seconds between two measurements of processor, memory, device and power. null: no measurements."""
    writers: tuple[Literal["tensorboard", "mlflow"], ...] = ()
    """Programs that also receive losses and metrics."""
    checkpoint_minutes: Positive = 5.0
    """Minutes between two checkpoints from which the run can be resumed. One is also written at the end of every epoch,
    and when the run is stopped."""
    keep_checkpoints: Count = 2
    """Number of checkpoints to resume from that are kept."""
    time_limit_minutes: Positive | None = None
    """Stop after this many minutes, so that the run can be resumed. The end of a Slurm job is taken into account
    without this setting."""
    store: StoreConfig | None = None
    """Copy the model, plots and report to a store when the run has finished."""
    log_every: Count | None = None
    """Steps between two records. Default: the number of steps in half a second."""

    @field_validator("strategy", mode="wrap")
    @classmethod
    def _check_strategy(cls, name: Any, check: ValidatorFunctionWrapHandler) -> Any:
        """Accept the strategies of other packages too. Their names are looked up only if it is not one of clew's."""
        installed = isinstance(name, str) and name not in STRATEGIES and name in installed_strategies()
        return name if installed else check(name)

    @field_serializer("strategy")
    def _serialize_strategy(self, name: str) -> str:
        return name

    @field_validator("device")
    @classmethod
    def _check_device(cls, name: str) -> str:
        if not re.fullmatch(r"[a-z]+(:\d+)?", name):
            raise ValueError(f"device is '{name}'; it must be auto, cpu, cuda, cuda:1 or mps")
        return name

    @model_validator(mode="after")
    def _check_combination(self) -> TrainConfig:
        if mask_secrets(self.dataset) != self.dataset:
            raise ValueError(
                "dataset contains a password or token, and settings are saved with the run; use the environment"
            )
        early = self.early_stopping
        if early is not None and early.direction is not None and early.metric in (None, self.best.metric):
            direction = self.best.direction or natural_direction(self.best.metric)
            if direction not in (None, early.direction):
                raise ValueError(
                    f"early_stopping.direction: {early.direction} contradicts best.metric '{self.best.metric}', which "
                    f"is to {direction}; leave out the direction, or name another early_stopping.metric"
                )
        if self.start_from is not None and self.replicas is not None:
            raise ValueError("replicas differ in their initial weights: start_from cannot be used with them")
        problem = asynchronous_problem(self) if self.traits.asynchronous else synchronous_problem(self)
        if problem:
            raise ValueError(problem)
        if self.traits.asynchronous:
            make_rule(self)  # checks `asynchronous.parameters`
        return self

    @property
    def traits(self) -> StrategyTraits:
        """What the chosen strategy supports."""
        return strategy_traits(self.strategy)

    @property
    def processes(self) -> int:
        """Number of processes to start: workers and masters. Only one master if workers join by themselves."""
        if not self.traits.asynchronous:
            return self.workers
        return 1 if self.asynchronous.listen else self.workers + self.asynchronous.masters + self.asynchronous.groups

    @property
    def exchange_interval(self) -> int:
        """Batches between two exchanges of an asynchronous worker."""
        return self.asynchronous.sync_every or self.traits.exchange_interval

    @property
    def sent_value_bytes(self) -> int:
        """Bytes of a gradient or a weight that workers send."""
        sent = self.asynchronous.transfer if self.traits.asynchronous else self.compress
        return 4 if sent in ("none", "float32") else 2

    @property
    def size(self) -> int:
        """The batch size as a number. A search replaces `auto` and `largest` before anything asks for it."""
        assert isinstance(self.batch_size, int), "the batch size must be determined first"
        return self.batch_size
