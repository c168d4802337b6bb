"""Use of a trained model: evaluate, predict, export, generate."""
