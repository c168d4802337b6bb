"""Taking a trained model home: ONNX, an exported program of torch, or a Keras file."""

from clew.verb import make_callable

make_callable(__name__)
