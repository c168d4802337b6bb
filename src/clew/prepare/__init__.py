"""Raw events to datasets: read, transform, prepare, write. Never imports torch.

Call it: `dataset = clew.prepare(recipe, config=None, **settings)`, for example
`clew.prepare("tracking", input=["events/*.txt"], output="dataset", workers=2)`; `help(clew.prepare.api.prepare)`
says all of it.
"""

from clew.verb import make_callable

make_callable(__name__)
