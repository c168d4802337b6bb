"""Training: one loop, strategies plugged in. Importing this package does not load torch; its modules do.

Call it: `run = clew.train(recipe, dataset, config=None, *, output=None, **settings)`, for example
`clew.train("tracking", "dataset", epochs=5, workers=2)`; `help(clew.train.api.train)` says all of it, and
`clew.train.api.resume(run)` goes on with a run that did not finish.
"""

from clew.verb import make_callable

make_callable(__name__)
