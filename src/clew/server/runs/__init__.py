"""Runs on the server: records are stored exactly once, and turned into curves, metric summaries and run states."""
