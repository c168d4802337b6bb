"""Training speed against the number of workers (`clew bench scale`)."""
