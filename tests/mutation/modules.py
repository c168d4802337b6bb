"""The modules that random mutants are planted in, by package, with the tests that must notice them."""

from __future__ import annotations

MODULES: dict[str, dict[str, str]] = {
    "numeric": {
        "training/asynchronous/rules/backup.py": "training/asynchronous/test_rules.py",
        "training/asynchronous/rules/diloco.py": "training/asynchronous/test_rules.py",
        "training/asynchronous/rules/downpour.py": "training/asynchronous/test_rules.py",
        "training/asynchronous/rules/easgd.py": "training/asynchronous/test_rules.py",
        "training/asynchronous/rules/gem.py": "training/asynchronous/test_rules.py",
        "training/asynchronous/rules/worker_side.py": "training/asynchronous/test_rules.py",
        "training/schedule.py": "training/test_engine.py",
        "data/dataset/sampler.py": "data/dataset/test_sampler.py",
        "data/transforms/reweight.py": "data/transforms/test_reweight.py",
        "data/transforms/scale.py": "data/transforms/test_scale.py",
        "data/table/concatenation.py": "data/table/test_table.py",
        "inference/export/preprocessing.py": "inference/export/test_preprocessing.py",
        "tuning/folds.py": "tuning/test_folds.py",
        "core/intervals.py": "test_metrics.py",
        "metrics.py": "test_metrics.py",
    },
    "security": {
        "core/private_files.py": "core/test_private_files.py",
        "core/trust.py": "core/test_trust.py security/test_trust.py",
        "server/accounts/caller.py": "server/test_access_control.py server/test_accounts.py",
        "server/accounts/rate_limit.py": "server/test_rate_limit.py",
        "server/accounts/tokens.py": "server/test_accounts.py server/test_access_control.py",
        "server/accounts/users.py": "server/test_accounts.py",
    },
}
EQUIVALENT: dict[str, tuple[str, ...]] = {
    "core/intervals.py": ("valid = (total > 0) & (squares > 0)",),  # a total of 0 gives NaN anyway
    "training/asynchronous/rules/worker_side.py": ("self._update.copy_(self._base - self.model.weights)",),  # on a GPU
}
"""Lines where a fault changes nothing that can be observed: parts of their text, by file."""
