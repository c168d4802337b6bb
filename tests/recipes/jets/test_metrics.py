"""Metrics of jet tagging: which classes are compared, and the numbers of a few jets."""

from __future__ import annotations

import math

import numpy as np
import pytest

from clew import metrics
from clew.data.table import Table
from clew.recipes.jets.metrics import JetsMetricsConfig, make_metrics, sigmoid, softmax
from clew.recipes.jets.roc_metrics import RejectionCurves, RocArea, ScoreHistograms

LABEL = np.array([0, 1, 1, 0, 1])
LOGITS = np.array([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 3.0], [0.0, 4.0]])
WEIGHTS = np.array([1.0, 2.0, 3.0, 4.0, 5.0])


@pytest.mark.parametrize(
    ("settings", "classes", "pairs"),
    [
        ({}, ("QCD", "top"), {"top": ["QCD"]}),
        ({}, ("a", "b", "c"), {"a": ["b", "c"], "b": ["a", "c"], "c": ["a", "b"]}),
        ({"signals": ("b",)}, ("a", "b", "c"), {"b": ["a", "c"]}),
        ({"signals": ("a",), "backgrounds": ("a", "c")}, ("a", "b", "c"), {"a": ["c"]}),
    ],
)
def test_signals_are_compared_with_other_classes(
    settings: dict[str, tuple[str, ...]], classes: tuple[str, ...], pairs: dict[str, list[str]]
) -> None:
    assert JetsMetricsConfig(**settings).pairs(classes) == pairs


def test_an_unknown_class_is_reported() -> None:
    JetsMetricsConfig(signals=("a",), backgrounds=("b",)).check(("a", "b"))
    for settings in (JetsMetricsConfig(signals=("c",)), JetsMetricsConfig(backgrounds=("c",))):
        with pytest.raises(ValueError, match="no class 'c', only a, b"):
            settings.check(("a", "b"))


def test_accuracy_and_confusion_count_weights() -> None:
    samples = Table({"label": LABEL, "weight": WEIGHTS, "jet_pt": np.array([250.0, 250, 350, 350, 350])})
    results = make_metrics(samples, LOGITS, ("QCD", "top"), JetsMetricsConfig())
    assert results["accuracy"] == metrics.Ratio(1 + 2 + 5, 15, 55)
    confusion, binned = results["confusion"], results["accuracy_pt"]
    assert isinstance(confusion, metrics.Confusion) and isinstance(binned, metrics.Binned)
    assert confusion.counts.tolist() == [[1, 4], [3, 7]]
    assert (binned.passed[:2].tolist(), binned.total[:2].tolist()) == ([3, 5], [3, 12])
    assert binned.axis == "jet pT [GeV]" and "accuracy_pt" not in make_metrics(
        samples.drop("jet_pt"), LOGITS, ("QCD", "top"), JetsMetricsConfig()
    )


def test_two_classes_have_one_signal_and_one_background() -> None:
    results = make_metrics(Table({"label": LABEL}), LOGITS, ("QCD", "top"), JetsMetricsConfig(efficiencies=(0.25, 0.5)))
    assert list(results) == ["accuracy", "auc", "rejection_25", "rejection_50", "curves", "scores", "confusion"]
    curves, scores = results["curves"], results["scores"]
    assert isinstance(curves, RejectionCurves) and isinstance(scores, ScoreHistograms)
    assert (curves.signal, curves.backgrounds, curves.style) == ("top", ("QCD",), "CMS")
    assert (scores.signal, scores.background) == ("top", "QCD")
    assert results["auc"].value == curves.value == scores.value == pytest.approx(4 / 6)  # pairs in the right order


def test_a_signal_is_compared_with_all_its_backgrounds_by_the_ratio_of_probabilities() -> None:
    label, logits = np.array([0, 1, 2, 1]), np.log([[0.5, 0.3, 0.2], [0.2, 0.7, 0.1], [0.4, 0.2, 0.4], [0.1, 0.3, 0.6]])
    results = make_metrics(Table({"label": label}), logits, ("a", "b", "c"), JetsMetricsConfig(signals=("b",)))
    area, scores = results["auc"], results["scores"]
    assert isinstance(area, RocArea) and isinstance(scores, ScoreHistograms)
    of_signal, of_background = (np.flatnonzero(each) for each in area.sums)
    logit = [math.log(p / (1 - p)) for p in (0.3, 0.7, 0.2, 0.3)]
    bins = [int((each + 20) * 100) for each in logit]
    assert sorted(of_signal) == sorted({bins[1], bins[3]}) and sorted(of_background) == sorted({bins[0], bins[2]})
    assert scores.background == "a, c"


def test_probabilities_of_large_logits_do_not_overflow() -> None:
    np.testing.assert_allclose(softmax([[1000.0, 1000 + math.log(3)], [0, 0]]), [[0.25, 0.75], [0.5, 0.5]])
    np.testing.assert_allclose(sigmoid(np.array([-1000.0, 0, math.log(3), 1000])), [0, 0.5, 0.75, 1])
