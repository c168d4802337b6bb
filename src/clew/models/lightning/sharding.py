"""Steps of a LightningModule whose weights are divided among ranks (FSDP)."""

from __future__ import annotations

from torch import nn

_STEPS = ("training_step", "validation_step", "test_step", "predict_step")


def gather_for_steps(module: nn.Module) -> None:
    """Gather divided weights before a step as before a forward pass: a step may use them without calling the module."""
    from torch.distributed.fsdp import FSDPModule, register_fsdp_forward_method

    if isinstance(module, FSDPModule):
        for name in _STEPS:
            register_fsdp_forward_method(module, name)
