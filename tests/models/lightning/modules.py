"""LightningModules as users write them. Tests copy this file next to their data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lightning
import torch
import torch.nn.functional as F
import torchmetrics
from torch import Tensor, nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import MultiStepLR, OneCycleLR, ReduceLROnPlateau, StepLR
from torch.utils.data import DataLoader, TensorDataset


class Classifier(lightning.LightningModule):
    """A perceptron with one optimiser. `schedule` selects what configure_optimizers returns."""

    def __init__(self, hidden: int = 16, lr: float = 0.01, schedule: str = "none", dropout: float = 0.0) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(4, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, 2))
        self.scale = nn.Parameter(torch.ones(1))
        self.accuracy = torchmetrics.classification.MulticlassAccuracy(2, average="micro")
        self.train_accuracy = torchmetrics.classification.MulticlassAccuracy(2, average="micro")

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x) * self.scale
        return out

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch[:2]
        out = self(x)
        loss = F.cross_entropy(out, y)
        self.train_accuracy(out, y)
        self.log("train_loss", loss)
        self.log("train_acc", self.train_accuracy, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch[:2]
        out = self(x)
        self.accuracy(out, y)
        self.log_dict({"val_loss": F.cross_entropy(out, y), "val_acc": self.accuracy}, prog_bar=True)

    def configure_optimizers(self) -> Any:
        optimizer = Adam(self.parameters(), lr=self.hparams["lr"])
        steps = self.trainer.estimated_stepping_batches
        one_cycle = OneCycleLR(optimizer, 0.05, total_steps=int(steps)) if self.hparams["schedule"] == "step" else None
        choices: dict[str, Callable[[], Any]] = {
            "none": lambda: optimizer,
            "list": lambda: [optimizer],
            "epoch": lambda: ([optimizer], [StepLR(optimizer, 1, 0.5)]),
            "step": lambda: {"optimizer": optimizer, "lr_scheduler": {"scheduler": one_cycle, "interval": "step"}},
            "every": lambda: (
                [optimizer],
                [{"scheduler": MultiStepLR(optimizer, [2, 3], 0.3), "interval": "step", "frequency": 3}],
            ),
            "plateau": lambda: {
                "optimizer": optimizer,
                "lr_scheduler": ReduceLROnPlateau(optimizer, patience=0, factor=0.1, threshold=10.0),
                "monitor": "val_loss",
            },
            "dicts": lambda: [{"optimizer": optimizer, "lr_scheduler": StepLR(optimizer, 2, 0.1)}],
        }
        return choices[self.hparams["schedule"]]()


class Adversarial(lightning.LightningModule):
    """Two networks with an optimiser and a scheduler each, stepped by hand."""

    def __init__(self, schedule: bool = True) -> None:
        super().__init__()
        self.automatic_optimization, self.schedule = False, schedule
        self.generator = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 4))
        self.critic = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x: Tensor) -> Tensor:
        score: Tensor = self.critic(x)
        return score

    def training_step(self, batch: Any, batch_idx: int) -> None:
        x = batch[0]
        optimizers: Any = self.optimizers()
        first, second = optimizers
        self.toggle_optimizer(first)
        loss = F.softplus(-self.critic(self.generator(x[:, :2]))).mean()
        first.zero_grad()
        self.manual_backward(loss)
        first.step()
        self.untoggle_optimizer(first)
        second.zero_grad()
        fake = self.generator(x[:, :2]).detach()
        self.manual_backward(F.softplus(-self.critic(x)).mean())
        self.manual_backward(F.softplus(self.critic(fake)).mean())
        self.clip_gradients(second, 0.1, "norm")
        second.step()
        self.log("generator_loss", loss)
        if self.trainer.is_last_batch:
            schedulers: Any = self.lr_schedulers() or ()
            for scheduler in schedulers:
                scheduler.step()

    def validation_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = F.softplus(-self.critic(batch[0])).mean()
        self.log("val_loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        first, second = Adam(self.generator.parameters(), lr=0.01), SGD(self.critic.parameters(), lr=0.1, momentum=0.9)
        if not self.schedule:
            return first, second
        return [first, second], [StepLR(first, 1, 0.5), {"scheduler": MultiStepLR(second, [1, 2], 0.5)}]


class Hooked(Classifier):
    """Counts its hooks, and computes a metric at the end of a validation."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.scores: list[Tensor] = []

    def on_train_epoch_start(self) -> None:
        self.calls.append(f"start {self.current_epoch}")

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.log("batches", float(batch_idx + 1))

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        super().validation_step(batch, batch_idx)
        self.scores.append(self(batch[0])[:, 0])

    def on_validation_epoch_end(self) -> None:
        self.log("spread", torch.cat(self.scores).std())
        self.scores.clear()

    def on_train_epoch_end(self) -> None:
        self.calls.append(f"end {self.current_epoch} {self.global_step}")

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        return F.softmax(self(batch), 1)


class ByName(Classifier):
    """Gets batches as dictionaries."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return F.cross_entropy(self(batch["x"]), batch["kind"])

    def validation_step(self, batch: Any) -> Tensor:  # type: ignore[override]
        return F.cross_entropy(self(batch["x"]), batch["kind"])


class Data(lightning.LightningDataModule):
    """200 events to train on, 60 to validate on, in batches of 20."""

    def setup(self, stage: str) -> None:
        generator = torch.Generator().manual_seed(7)
        self.x = torch.randn(260, 4, generator=generator)
        self.y = (self.x.sum(1) > 0).long()

    def train_dataloader(self) -> Any:
        return DataLoader(TensorDataset(self.x[:200], self.y[:200]), batch_size=20, shuffle=True)

    def val_dataloader(self) -> Any:
        return DataLoader(TensorDataset(self.x[200:], self.y[200:]), batch_size=30)


class Named(Data):
    """The same events as dictionaries."""

    def train_dataloader(self) -> Any:
        return DataLoader([{"x": x, "kind": y} for x, y in zip(self.x[:200], self.y[:200], strict=True)], batch_size=20)  # type: ignore[arg-type]

    def val_dataloader(self) -> Any:
        return DataLoader([{"x": x, "kind": y} for x, y in zip(self.x[200:], self.y[200:], strict=True)], batch_size=20)  # type: ignore[arg-type]


class NoStep(lightning.LightningModule):
    """Lacks training_step."""

    def configure_optimizers(self) -> Any:
        return Adam(self.parameters())


class NoOptimizer(Classifier):
    def configure_optimizers(self) -> Any:
        return None


class TwoOptimizers(Classifier):
    def configure_optimizers(self) -> Any:
        return [Adam(self.net.parameters()), Adam([self.scale])]


class UnknownKey(Classifier):
    def configure_optimizers(self) -> Any:
        optimizer = Adam(self.parameters())
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": StepLR(optimizer, 1), "intervall": "step"}}


class NoMonitor(Classifier):
    def configure_optimizers(self) -> Any:
        optimizer = Adam(self.parameters())
        return [optimizer], [ReduceLROnPlateau(optimizer)]


class OwnStep(Classifier):
    def optimizer_step(self, *arguments: Any, **options: Any) -> None:
        pass


class Callbacks(Classifier):
    def configure_callbacks(self) -> Any:
        return [lightning.pytorch.callbacks.EarlyStopping("val_loss")]


class ReachesIn(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.trainer.fit_loop.max_epochs = 3
        return super().training_step(batch, batch_idx)


class StopsTrainer(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.trainer.should_stop = True
        return super().training_step(batch, batch_idx)


class NoLoss(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return None


class NoValidationLoss(Classifier):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_acc", 1.0)


class SumOfLog(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.log("seen", 1.0, reduce_fx="sum")
        return super().training_step(batch, batch_idx)


class ManualOnly(Adversarial):
    """Takes no step, and has no validation."""

    validation_step = lightning.LightningModule.validation_step  # type: ignore[assignment]


class OwnCollate(Data):
    def train_dataloader(self) -> Any:
        return DataLoader(TensorDataset(self.x, self.y), collate_fn=torch.utils.data.default_convert)


class FourItems(Data):
    def train_dataloader(self) -> Any:
        return DataLoader(TensorDataset(self.x, self.y, self.y, self.y))


def make(hidden: int = 8) -> Classifier:
    """A function that makes a module."""
    return Classifier(hidden)
