"""What a server has, from Python: the parts of `clew.Client`."""
