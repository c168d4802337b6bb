"""Planted bugs in data, inference, tuning, benchmarks and recipes."""

from __future__ import annotations

from tests.mutation.bug import Bug

DATA = (
    Bug(
        "the note of a generator recipe does not depend on its settings",
        "data/prepare/worker.py",
        'return f"pieces-{chain.keys(source.sha256, 0)[0]}"',
        'return f"pieces-{source.sha256}"',
        "data/prepare/test_stage_cache.py",
    ),
    Bug(
        "the use of a cached result is not recorded: pruning removes what is in use",
        "data/prepare/stage_cache.py",
        "            os.utime(path)\n",
        "            pass\n",
        "data/prepare/test_stage_cache.py::test_pruning_removes_the_least_recently_used_results",
    ),
    Bug(
        "the temporary folder of a running preparation is removed",
        "data/prepare/assembly.py",
        "                    with hold_lock(lock, timeout=0):  # OSError if its process is running\n"
        "                        shutil.rmtree(leftover, ignore_errors=True)\n",
        "                    shutil.rmtree(leftover, ignore_errors=True)\n",
        "data/prepare/test_stage_cache.py::test_the_folder_of_a_running_preparation_is_not_removed",
    ),
    Bug(
        "joined tables share offsets of columns with other lengths",
        "data/table/concatenation.py",
        "key = tuple(id(part.offsets) for part in parts)",
        "key = (id(parts[0].offsets),)",
        "data/table/test_table.py",
    ),
    Bug(
        "half a line is taken for an event (lines over 4 KiB)",
        "data/readers/text_lines.py",
        'complete_lines = lines if first == begin else lines.partition(b"\\n")[2]',
        "complete_lines = lines",
        "data/readers/test_text_pieces.py::test_the_end_of_a_long_line_is_no_event",
    ),
    Bug(
        "events at the edge of a bin are weighted as the bin below",
        "data/transforms/reweight.py",
        'side="right"',
        'side="left"',
        "data/transforms/test_reweight.py",
    ),
    Bug(
        "a key twice inside an item of a list is not noticed",
        "core/config.py",
        "if isinstance(node, (yaml.MappingNode, yaml.SequenceNode)) else []",
        "if isinstance(node, yaml.MappingNode) else []",
        "core/test_config.py::test_a_key_that_is_set_twice_is_reported_at_any_depth",
    ),
    Bug(
        "errors of weighted bins count every weight as 1",
        "metrics.py",
        "fill(weight), fill(weight**2), axis, label)",
        "fill(weight), fill(weight), axis, label)",
        "test_metrics.py",
    ),
)

INFERENCE = (
    Bug(
        "two scalings are composed wrongly",
        "inference/export/preprocessing.py",
        "shift + own_shift / factor, factor * own_factor",
        "shift + own_shift, factor * own_factor",
        "inference/export/test_preprocessing.py",
    ),
    Bug(
        "an export is compared at one batch size only",
        "inference/export/parity.py",
        "for size in (*SIZES, len(samples)):",
        "for size in (len(samples),):",
        "inference/export/test_parity.py",
    ),
)

TUNING = (
    Bug(
        "a grid loses its last point",
        "tuning/config.py",
        "(self.step or 1) + 1e-9) + 1",
        "(self.step or 1) + 1e-9)",
        "tuning/test_space.py",
    ),
    Bug(
        "a grid loses its last point to rounding",
        "tuning/config.py",
        "(self.step or 1) + 1e-9) + 1",
        "(self.step or 1)) + 1",
        "tuning/test_space.py",
    ),
    Bug(
        "the seed of folds is ignored",
        "tuning/folds.py",
        "np.random.default_rng(config.seed)",
        "np.random.default_rng(0)",
        "tuning/test_folds.py::test_the_seed_decides_which_events_are_in_a_fold",
    ),
    Bug(
        "a success does not reset the count of failures",
        "tuning/coordinator.py",
        "spread=spread, **facts)\n            self._failures = 0\n",
        "spread=spread, **facts)\n",
        "tuning/test_study.py::test_failures_are_counted_in_a_row",
    ),
    Bug(
        "a lock that another process has taken over is released",
        "core/file_lock.py",
        "            if self._path.read_text() == self._identity:\n                self._path.unlink()",
        "            self._path.unlink()",
        "core/test_file_lock.py",
    ),
)

BENCH = (
    Bug(
        "the mean time of strategies instead of the median",
        "bench/strategies/results.py",
        "median = statistics.median(times)",
        "median = statistics.fmean(times)",
        "bench/test_strategies.py::test_the_median_counts_and_failures_count_as_slow",
    ),
    Bug(
        "the mean of scores instead of the median",
        "bench/workload/hepscore.py",
        '"median": statistics.median(rounded)',
        '"median": statistics.fmean(rounded)',
        "bench/test_hepscore.py",
    ),
    Bug(
        "the mean of repetitions instead of the median",
        "bench/workload/hepscore.py",
        "{name: statistics.median(values) for",
        "{name: statistics.fmean(values) for",
        "bench/test_hepscore.py",
    ),
    Bug(
        "the events of an epoch count those of the epochs before",
        "bench/workload/training_run.py",
        'epoch_steps[-1]["samples"] - before if',
        'epoch_steps[-1]["samples"] if',
        "bench/test_workload.py::test_the_events_of_an_epoch_are_its_own",
    ),
)

RECIPES = (
    Bug(
        "particle flow: momenta of elements without a particle count",
        "recipes/particleflow/loss.py",
        "momentum_loss * (kind != NONE)",
        "momentum_loss",
        "recipes/particleflow/test_metrics.py",
    ),
    Bug(
        "particle flow: padded accuracy ignores event weights",
        "recipes/particleflow/metrics.py",
        "0) @ samples.weights",
        "0).sum()",
        "recipes/particleflow/test_metrics.py",
    ),
    Bug(
        "particle flow: padding of a batch with a capacity has a weight",
        "recipes/particleflow/loss.py",
        "f.pad(weights, (0, 1))",
        "f.pad(weights, (0, 1), value=1.0)",
        "recipes/particleflow/test_metrics.py",
    ),
    Bug(
        "the TrackML score ignores event weights",
        "recipes/tracking/metrics.py",
        'weight = samples.weights[samples.ragged("track").events]',
        'weight = samples.weights[samples.ragged("track").events] ** 0',
        "recipes/tracking/test_metrics.py",
    ),
    Bug(
        "hit graphs: the position at the beam is computed with the outer radius",
        "recipes/tracking/hitgraph.py",
        "    beam = hits.v[a] - slope * hits.w[a]\n    return np.stack",
        "    beam = hits.v[a] - slope * hits.w[b]\n    return np.stack",
        "recipes/tracking/test_hitgraph.py",
    ),
    Bug(
        "segments: the position at the beam is computed with the outer radius",
        "recipes/tracking/segments.py",
        "beam = hits.v[a] - slope * hits.w[a]",
        "beam = hits.v[a] - slope * hits.w[b]",
        "recipes/tracking/test_segments.py",
    ),
)
