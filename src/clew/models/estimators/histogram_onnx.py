"""HistGradientBoosting of scikit-learn as an ONNX model. skl2onnx passes booleans where today's onnx needs integers.

A split compares a float32 feature with a float64 threshold. The threshold is rounded down to float32, which leaves the
result of every comparison as it was.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from clew.errors import RecipeError

_LOG_LINK = ("poisson", "gamma")
"""Losses whose trees predict the logarithm."""


def histogram_to_onnx(fitted: Any, features: int) -> Any:
    """Return the ONNX model of a fitted HistGradientBoostingClassifier or HistGradientBoostingRegressor.

    Args:
        fitted: The estimator.
        features: Number of features.

    Raises:
        RecipeError: It has categorical features.
    """
    from onnx import TensorProto, helper, numpy_helper

    trees = [tree.nodes for round_trees in fitted._predictors for tree in round_trees]
    if any(nodes["is_categorical"].any() for nodes in trees):
        raise RecipeError("a model with categorical features cannot be exported to ONNX; encode them as numbers")
    targets = len(fitted._predictors[0])
    baseline = np.asarray(fitted._baseline_prediction, dtype=np.float32).ravel().tolist()
    attributes = _tree_attributes(trees, targets)
    nodes = [
        helper.make_node(
            "TreeEnsembleRegressor",
            ["features"],
            ["raw"],
            domain="ai.onnx.ml",
            n_targets=targets,
            base_values=baseline,
            aggregate_function="SUM",
            post_transform="NONE",
            **attributes,
        )
    ]
    one = []
    if not hasattr(fitted, "predict_proba"):
        nodes.append(helper.make_node("Exp" if fitted.loss in _LOG_LINK else "Identity", ["raw"], ["output"]))
    elif targets > 1:
        nodes.append(helper.make_node("Softmax", ["raw"], ["output"], axis=1))
    else:
        one = [numpy_helper.from_array(np.ones(1, dtype=np.float32), "one")]
        nodes.append(helper.make_node("Sigmoid", ["raw"], ["signal"]))
        nodes.append(helper.make_node("Sub", ["one", "signal"], ["background"]))
        nodes.append(helper.make_node("Concat", ["background", "signal"], ["output"], axis=1))
    inputs = [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["events", features])]
    outputs = [helper.make_tensor_value_info("output", TensorProto.FLOAT, ["events", max(targets, 1 + len(one))])]
    graph = helper.make_graph(nodes, type(fitted).__name__, inputs, outputs, initializer=one)
    opsets = [helper.make_opsetid("", 15), helper.make_opsetid("ai.onnx.ml", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def _tree_attributes(trees: list[NDArray[Any]], targets: int) -> dict[str, Any]:
    """Return the nodes of all trees as the attributes of ONNX's operation."""
    counts = [len(nodes) for nodes in trees]
    nodes = np.concatenate(trees)
    leaf = nodes["is_leaf"].astype(bool)
    tree_ids = np.repeat(np.arange(len(trees)), counts)
    node_ids = np.concatenate([np.arange(count) for count in counts])

    def inner(name: str) -> Any:
        return np.where(leaf, 0, nodes[name].astype(np.int64)).tolist()

    return {
        "nodes_treeids": tree_ids.tolist(),
        "nodes_nodeids": node_ids.tolist(),
        "nodes_featureids": inner("feature_idx"),
        "nodes_modes": np.where(leaf, "LEAF", "BRANCH_LEQ").tolist(),
        "nodes_values": np.where(leaf, np.float32(0), _rounded_down(nodes["num_threshold"])).tolist(),
        "nodes_truenodeids": inner("left"),
        "nodes_falsenodeids": inner("right"),
        "nodes_missing_value_tracks_true": inner("missing_go_to_left"),
        "target_treeids": tree_ids[leaf].tolist(),
        "target_nodeids": node_ids[leaf].tolist(),
        "target_ids": (tree_ids[leaf] % targets).tolist(),
        "target_weights": nodes["value"][leaf].astype(np.float32).tolist(),
    }


def _rounded_down(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the largest float32 numbers that are not above these."""
    single = values.astype(np.float32)
    return np.where(single.astype(np.float64) > values, np.nextafter(single, np.float32(-np.inf)), single)
