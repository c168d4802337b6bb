"""Trained models as files for other programs: ONNX, an exported program of torch, or a Keras file."""
