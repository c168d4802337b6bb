"""Trained models for other programs: ONNX, an exported program of torch, a Keras file, or an hls4ml project."""
