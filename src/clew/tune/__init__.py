"""Hyper-parameter search: studies, and the trials in them.

Importing this package loads neither torch nor Optuna; its modules do. Call it: `clew.tune(template, "studies/first")`,
where the template is what `clew.spec.load("my.yaml")` gives; `help(clew.tune.api.tune)` says all of it, and
`clew.tune.study.Study` is a study to ask and tell from outside.
"""

from clew.verb import make_callable

make_callable(__name__)
