"""Hyper-parameter search: studies and their trials. Importing this package loads neither torch nor Optuna.

`clew.tune(settings, "studies/first")` runs a study. `clew.Study` is a study that other programs can use
through ask, report and tell.

Reading order:

1. `config`: the settings of a study (`tune:` in a YAML file).
2. `api`: `clew.tune`, from settings to a finished study.
3. `study`, `folder`, `space`, `optuna_setup`: a study on disk; Optuna proposes and prunes.
4. `coordinator`, `heartbeat`: the loop that asks for trials, executes and tells them.
5. `executor` (the contract), `job_executor`, `pack_executor`, `function_executor`: what executes the trials.
6. `objectives`, `folds`, `resource_slots`: the value of a run, cross-validation, cores and devices per trial.
7. `snapshot`, `best_trials`, `study_cost`, `figures`, `report`: what pages show about a study.
8. `panda`: hyper-parameter optimisation of PanDA.
"""
