"""What a trained model is used for: evaluate, predict, export."""
