"""First steps: init, demo, config."""
