"""Training: one loop with strategies plugged in. Importing this package does not load torch; its modules do.

`clew.train` starts a training; `clew.resume` continues one that did not finish.
"""
