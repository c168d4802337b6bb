"""SavedModels of TensorFlow. Keras writes them on its TensorFlow backend, in a process of its own.

In this process Keras computes with torch, and a process has one backend. TensorFlow is not a dependency of clew.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from clew.core.process import safe_path
from clew.errors import ConfigError, RecipeError

SAVED_MODEL_ENTRY = Path("assets.extra") / "clew.json"
"""Where a SavedModel holds its description: `assets.extra` is the folder for files that TensorFlow ignores."""
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}
_PROGRAM = """
import sys
import keras
model = keras.models.load_model(sys.argv[1], compile=False)
model.export(sys.argv[2], format="tf_saved_model", verbose=False)
"""


def check_tensorflow() -> None:
    """Check that TensorFlow is installed, without importing it.

    Raises:
        ConfigError: It is not.
    """
    if importlib.util.find_spec("tensorflow") is None:
        raise ConfigError("a SavedModel needs TensorFlow, which is not installed: pip install tensorflow-cpu")


def save_keras_content(content: bytes, path: Path) -> None:
    """Write the model of a `.keras` file as a SavedModel.

    Args:
        content: The content of the file.
        path: The folder to write.

    Raises:
        RecipeError: Keras cannot write it with TensorFlow.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.keras"
        file.write_bytes(content)
        environment = {**os.environ, **_QUIET, "KERAS_BACKEND": "tensorflow", "CUDA_VISIBLE_DEVICES": ""}
        command = [sys.executable, *safe_path(), "-c", _PROGRAM, str(file), str(path)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no message"]
        raise RecipeError(f"Keras cannot write a SavedModel: {lines[-1]}; use --to keras or --to onnx")


def load_saved_model(path: Path) -> Any:
    """Return a SavedModel, whose method `serve` computes. It holds the weights: the method alone does not.

    Raises:
        ConfigError: TensorFlow is not installed, or cannot read it.
    """
    check_tensorflow()
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    tensorflow = importlib.import_module("tensorflow")
    try:
        return tensorflow.saved_model.load(str(path))
    except Exception as error:  # TensorFlow raises many types
        raise ConfigError(f"{path}: TensorFlow cannot read it ({type(error).__name__})") from error
