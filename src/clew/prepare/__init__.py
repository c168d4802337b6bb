"""Raw events to datasets: read, transform, prepare, write. Never imports torch."""

from clew.verb import make_callable

make_callable(__name__)
