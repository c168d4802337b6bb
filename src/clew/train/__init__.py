"""Training: one loop, strategies plugged in. Importing this package does not load torch; its modules do."""

from clew.verb import make_callable

make_callable(__name__)
