"""The modules that random mutants are planted in, by package, with the tests that must notice them."""

from __future__ import annotations

_RULES = "training/asynchronous/test_rules.py"
_ENGINE = "training/test_engine.py"
_FLOW = "recipes/particleflow/test_metrics.py"
_SHOWERS = "recipes/fastsim/test_shower_flow.py"
_JETS = "recipes/jets/test_metrics.py recipes/jets/test_roc_metrics.py"
_ACCOUNTS = "server/test_tokens.py server/test_caller.py"

MODULES: dict[str, dict[str, str]] = {
    "asynchronous rules": {
        "training/asynchronous/rules/backup.py": _RULES,
        "training/asynchronous/rules/diloco.py": _RULES,
        "training/asynchronous/rules/downpour.py": _RULES,
        "training/asynchronous/rules/easgd.py": _RULES,
        "training/asynchronous/rules/gem.py": _RULES,
        "training/asynchronous/rules/worker_side.py": _RULES,
        "training/asynchronous/batch_leases.py": "training/asynchronous/test_batch_leases.py",
    },
    "training": {
        "training/schedule.py": _ENGINE,
        "training/engine.py": f"{_ENGINE} training/test_steps.py training/test_record.py",
        "training/optimizer.py": f"{_ENGINE} training/test_optimizer.py",
        "training/early_stopping.py": "training/test_early_stopping.py training/test_control.py",
        "training/stop_signal.py": "training/test_stop_signal.py",
    },
    "data": {
        "data/dataset/sampler.py": "data/dataset/test_sampler.py",
        "data/dataset/balance.py": "data/dataset/test_sampler.py",
        "data/transforms/coordinates.py": "data/transforms/test_coordinates.py",
        "data/transforms/reweight.py": "data/transforms/test_reweight.py",
        "data/transforms/scale.py": "data/transforms/test_scale.py",
        "data/transforms/select.py": "data/transforms/test_select.py",
        "data/transforms/tracks.py": "data/transforms/test_tracks.py",
        "data/expression/operations.py": "data/expression/test_expression.py",
        "data/expression/syntax.py": "data/expression/test_expression.py",
        "data/table/concatenation.py": "data/table/test_table.py",
        "data/table/ragged.py": "data/table/test_ragged.py",
        "inference/export/preprocessing.py": "inference/export/test_preprocessing.py",
    },
    "metrics": {
        "core/intervals.py": "test_metrics.py",
        "metrics.py": "test_metrics.py",
        "recipes/tracking/metrics.py": "recipes/tracking/test_metrics.py recipes/tracking/test_matching.py",
        "recipes/tracking/matching.py": "recipes/tracking/test_matching.py",
        "recipes/particleflow/loss.py": f"{_FLOW} recipes/particleflow/test_loss.py",
        "recipes/particleflow/metrics.py": _FLOW,
        "recipes/particleflow/metric_types.py": f"{_FLOW} recipes/particleflow/test_metric_types.py",
        "recipes/particleflow/jet_metrics.py": f"{_FLOW} recipes/particleflow/test_jet_metrics.py",
        "recipes/jets/metrics.py": _JETS,
        "recipes/jets/roc_metrics.py": _JETS,
        "recipes/fastsim/metrics.py": "recipes/fastsim/test_metrics.py",
        "recipes/fastsim/quality/distances.py": "recipes/fastsim/quality/test_distances.py",
        "recipes/fastsim/symmetry.py": "recipes/fastsim/test_symmetry.py",
        "recipes/fastsim/layer_scaler.py": f"{_SHOWERS} recipes/fastsim/test_layer_scaler.py",
        "recipes/fastsim/voxel_scaler.py": f"{_SHOWERS} recipes/fastsim/test_voxel_scaler.py",
    },
    "tuning and benchmarks": {
        "tuning/config.py": "tuning/test_config.py tuning/test_space.py",
        "tuning/space.py": "tuning/test_space.py",
        "tuning/folds.py": "tuning/test_folds.py",
        "tuning/study_cost.py": "tuning/test_study_cost.py",
        "bench/scaling/forecast.py": "bench/test_scale.py",
        "bench/scaling/results.py": "bench/test_scaling_results.py bench/test_scale.py",
        "bench/strategies/results.py": "bench/test_strategies.py",
        "bench/workload/hepscore.py": "bench/test_hepscore.py",
        "bench/workload/results.py": "bench/test_workload_results.py bench/test_workload.py",
    },
    "security": {
        "core/private_files.py": "core/test_private_files.py",
        "core/trust.py": "core/test_trust.py security/test_trust.py",
        "core/file_lock.py": "core/test_file_lock.py",
        "core/private_modules.py": "core/test_private_modules.py",
        "client/credentials.py": "client/test_credentials.py",
        "client/server_proof.py": "client/test_server_proof.py",
        "data/readers/safe_pickle.py": "data/readers/test_pickle_file.py",
        "server/accounts/audit.py": _ACCOUNTS,
        "server/accounts/caller.py": _ACCOUNTS,
        "server/accounts/rate_limit.py": "server/test_rate_limit.py",
        "server/accounts/tokens.py": _ACCOUNTS,
        "server/accounts/users.py": _ACCOUNTS,
        "server/jobs/queue.py": "server/test_queue.py server/test_queue_history.py",
    },
}
"""Tests that start a process or a server are left out, as in `make test-quick`."""
EQUIVALENT: dict[str, tuple[tuple[str, str], ...]] = {
    "core/file_lock.py": (("pause = min(2 * pause, 0.05)", "2 * pause -> 2 / pause"),),  # how often it looks
    "core/intervals.py": (("valid = (total > 0) & (squares > 0)", ""),),  # a total of 0 gives NaN anyway
    "data/dataset/balance.py": (
        ("loads = [(0.0, rank)", "0.0 -> 1.0"),  # all ranks begin with the same sum
        ("counts[rank] += 1", ""),  # a rank that got its second sample never has most
    ),
    "data/transforms/scale.py": (
        (
            "deviation if deviation > _ROUNDING",
            "deviation > _ROUNDING * abs(average) -> deviation >= (_ROUNDING * abs(average))",  # equal if both are 0
        ),
    ),
    "data/transforms/tracks.py": (
        ("key = track.events", "track.events * len(names) + number -> (track.events * len(names)) - number"),
        # the keys are still different
    ),
    "recipes/fastsim/layer_scaler.py": (
        ("log_limits(", ""),  # the fit sets the limits; bins may be one more
        ("layer, min_entries=60)", "60 -> 61"),  # as good a number
        ("/ (high - low) * (BINS - 1)", "1 -> 2"),  # one bin fewer is as good
    ),
    "recipes/fastsim/metrics.py": (
        ("both = np.where(p + q > 0, p + q, 1.0)", "1.0 -> 2.0"),  # 0 is divided by it
        ("total = np.where(features.total > 0", "1.0 -> 2.0"),  # 0 is divided by it
        ("np.clip(np.asarray(each, float), bins[0], bins[-1])", "1 -> 2"),  # the last bin starts there
    ),
    "recipes/fastsim/quality/distances.py": (("_Moments.of(part - centre)", "part - centre -> part + centre"),),
    "recipes/fastsim/voxel_scaler.py": (
        ("log_limits(", ""),  # the fit sets the limits; bins may be one more
        ('register_buffer("threshold"', ""),  # the fit sets it
        ("reach = (2 * cut.abs())", "2 -> 3"),  # as good a number
        ("torch.where(count >= cells, last - 1, after)", "1 -> 2"),  # any number below the last
    ),
    "recipes/particleflow/jet_metrics.py": (("fastjet.PseudoJet(", ""),),  # any jet makes it print its banner
    "recipes/particleflow/loss.py": (("f.pad(weights, (0, 1))", "1 -> 2"),),  # only the first zero is used
    "recipes/tracking/matching.py": (("true_track.max(initial=0)) + 1", "0 -> 1"),),  # any base above the largest does
    "training/asynchronous/batch_leases.py": (("limit = 1 << 62", "62 -> 63"),),  # above any number of batches
    "training/asynchronous/rules/easgd.py": (("self._alpha = 0.0", ""),),  # an update comes before every answer
    "training/asynchronous/rules/worker_side.py": (
        ("if self._base.device == self.outgoing.device", ""),  # both branches give the same numbers
        ("self._update.copy_(self._base - self.model.weights)", ""),  # on a GPU
    ),
    "tuning/study_cost.py": (
        ("full = max((max(trial.reports, default=0)", "0 -> 1"),  # what was pruned has a step 1
        ("if done else 0.0", "0.0 -> 1.0"),  # steps count from 1
    ),
}
"""Faults that change nothing that can be observed, by file: a part of the line, and the fault; empty for all of it."""
