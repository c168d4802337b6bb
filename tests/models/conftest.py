"""Datasets shared with the tests of training."""

from tests.training.conftest import flat, weighted

__all__ = ["flat", "weighted"]
