"""Hyper-parameter search: studies and their trials. Importing this package loads neither torch nor Optuna.

`clew.tune(settings, "studies/first")` runs a study; `clew.tuning.study.Study` is a study to ask and tell from outside.
"""
