"""Realistic bugs that once survived the tests (issue 28), and the tests that notice them now."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bug:
    """A text of a source file, what it is replaced by, and the tests that must then fail."""

    name: str
    file: str
    """Below `src/clew`."""
    before: str
    """It occurs exactly once in the file."""
    after: str
    tests: str
    """Arguments of pytest, below `tests`."""


SERVICE = (
    Bug(
        "a rollback in the shared writer forgets nothing: cached positions stay wrong",
        "server/service.py",
        "        writer.after_rollback.append(ingestion.forget)\n",
        "",
        "server/test_writer.py",
    ),
    Bug(
        "a refused piece of work takes the others of its transaction with it",
        "server/database/writer.py",
        "            for task in tasks:\n                self._process([task])",
        "            for task in tasks:\n                task.future.set_exception(error)",
        "server/test_writer.py::test_a_refusal_undoes_only_its_own_work",
    ),
    Bug(
        "a read token deletes artefacts of its own run",
        "server/api/artefacts.py",
        "async def remove(service: ServiceOf, caller: Author,",
        "async def remove(service: ServiceOf, caller: Reader,",
        "server/test_access_control.py::test_a_token_to_read_changes_nothing_of_its_own_user",
    ),
    Bug(
        "the token of a job changes tags",
        "server/api/runs.py",
        "async def set_tags(service: ServiceOf, caller: Author,",
        "async def set_tags(service: ServiceOf, caller: RunWriter,",
        "server/test_access_control.py::test_the_token_of_a_job_adds_to_its_run_and_changes_nothing_else",
    ),
    Bug(
        "overlapping uploads: no check of the quota at the end",
        "server/api/artefacts.py",
        "    if content.bytes - (replaced or 0) > remaining:\n        raise quota_exceeded()\n",
        "",
        "server/test_artefacts.py::test_an_upload_that_ended_meanwhile_counts",
    ),
    Bug(
        "the late report of an old attempt ends the new one",
        "server/jobs/queue.py",
        'row["agent"] != agent or row["attempt"] != result.attempt',
        'row["agent"] != agent',
        "server/test_queue.py::test_a_late_report_of_an_old_attempt_does_not_end_the_new_one",
    ),
    Bug(
        "a rate limit never expires",
        "server/accounts/rate_limit.py",
        "        if now - started > _WINDOW_SECONDS:\n            started, count = now, 0\n",
        "",
        "server/test_rate_limit.py",
    ),
)

RUNS = (
    Bug(
        "status 429 is not tried again by the client",
        "client/connection.py",
        "_BUSY = (429, 503)",
        "_BUSY = (503,)",
        "server/test_push.py::test_a_busy_server_is_asked_again",
    ),
    Bug(
        "status 429 ends the background push",
        "runs/push_process.py",
        "(0, 429, 500, 502, 503, 504)",
        "(0, 500, 502, 503, 504)",
        "server/test_push.py::test_a_busy_server_does_not_end_the_push_in_the_background",
    ),
    Bug(
        "a secret of the server's URL is written to the note in the run folder",
        "runs/push.py",
        '"server": mask_secrets(self.link.server)',
        '"server": self.link.server',
        "server/test_push.py::test_the_note_of_a_push_holds_no_secret",
    ),
)

ASYNCHRONOUS = (
    Bug(
        "EASGD: alpha is not divided by the workers",
        "training/asynchronous/rules/easgd.py",
        "min(0.5, elasticity / workers)",
        "min(0.5, elasticity)",
        "training/asynchronous/test_rules.py",
    ),
    Bug(
        "EASGD with overlap: the difference is that of the wrong buffer",
        "training/asynchronous/rules/easgd.py",
        "sent = self._previous if self.config.asynchronous.overlap else self.outgoing",
        "sent = self.outgoing",
        "training/asynchronous/test_rules.py",
    ),
    Bug(
        "overlap forgets the difference that was just packed",
        "training/asynchronous/rules/worker_side.py",
        "            self.model.weights.sub_(self._update.to(self.model.weights.device))\n",
        "            pass\n",
        "training/asynchronous/test_rules.py",
    ),
    Bug(
        "GEM: momentum is not accumulated",
        "training/asynchronous/rules/gem.py",
        "self._momentum.mul_(settings.momentum).add_(delta)",
        "self._momentum.copy_(delta)",
        "training/asynchronous/test_rules.py",
    ),
    Bug(
        "GEM: the weights before an exchange are those after it",
        "training/asynchronous/rules/gem.py",
        "        torch.add(self._last_central, step, out=self.model.weights)\n",
        "        torch.add(self._last_central, step, out=self.model.weights)\n"
        "        self._last_central.copy_(self.model.weights)\n",
        "training/asynchronous/test_rules.py",
    ),
    Bug(
        "GEM: the base of a step is never renewed",
        "training/asynchronous/rules/gem.py",
        "        self._base.copy_(self.model.weights)\n        request(",
        "        request(",
        "training/asynchronous/test_rules.py",
    ),
    Bug(
        "DiLoCo: the outer step is not Nesterov's",
        "training/asynchronous/rules/diloco.py",
        '"nesterov": True',
        '"nesterov": False',
        "training/asynchronous/test_rules.py",
    ),
    Bug(
        "downpour: differences are added with the wrong sign",
        "training/asynchronous/rules/worker_side.py",
        "torch.sub(self._base, self.model.weights, out=self._update)",
        "torch.sub(self.model.weights, self._base, out=self._update)",
        "training/asynchronous/test_rules.py",
    ),
    Bug(
        "backup takes updates of older weights",
        "training/asynchronous/update_handler.py",
        'stale = self._rule.refuses_stale and int(message.fields["version"]) < self._master.version',
        "stale = False",
        "training/asynchronous/test_elastic.py::test_backup_refuses_an_update_of_older_weights",
    ),
    Bug(
        "progress does not renew the lease of batches",
        "training/asynchronous/batch_leases.py",
        "        lease.deadline = time.monotonic() + self._timeout\n",
        "",
        "training/asynchronous/test_batch_leases.py",
    ),
)

TRAINING = (
    Bug(
        "the moving average of weights is inverted",
        "training/engine.py",
        "[p.detach() for p in self._parameters], 1 - self._decay)",
        "[p.detach() for p in self._parameters], self._decay)",
        "training/test_engine.py",
    ),
    Bug(
        "`minutes` start again when a run is resumed",
        "training/loop.py",
        'self.earlier_seconds, self.end_reason = state["spent"], state["over"]',
        'self.end_reason = state["over"]',
        "training/test_control.py::test_minutes_count_on_through_a_resume",
    ),
    Bug(
        "`minutes` of an asynchronous run start again when it is resumed",
        "training/asynchronous/coordinator_records.py",
        'self.earlier_seconds, self.end_reason, self._recorded_step = state["spent"], state["over"], step',
        'self.end_reason, self._recorded_step = state["over"], step',
        "training/test_control.py::test_minutes_count_on_through_a_resume",
    ),
    Bug(
        "a short Slurm job is stopped a whole minute before its end",
        "training/stop_signal.py",
        "min(_GRACE, (job_end - now) / 4)",
        "_GRACE",
        "training/test_stop_signal.py",
    ),
    Bug(
        "any format of a checkpoint is read",
        "training/checkpoint.py",
        "if version == FORMAT:",
        "if version:",
        "training/test_checkpoint.py",
    ),
    Bug(
        "the sampler's order is that of seed + epoch",
        "data/dataset/sampler.py",
        "np.random.default_rng([self.seed, epoch])",
        "np.random.default_rng(self.seed + epoch)",
        "data/dataset/test_sampler.py::test_no_seed_and_epoch_repeat_the_order_of_another",
    ),
    Bug(
        "warm-up starts at zero",
        "training/schedule.py",
        "(step + 1) / self._warmup_steps",
        "step / self._warmup_steps",
        "training/test_engine.py",
    ),
    Bug(
        "the schedule after a warm-up ends too early",
        "training/schedule.py",
        "max(self._steps - self._warmup_steps, 1)",
        "self._steps",
        "training/test_engine.py",
    ),
    Bug(
        "a checkpoint's weights are not copied before they are written",
        "training/checkpoint.py",
        'return state.detach().to("cpu", copy=True)',
        "return state.detach()",
        "training/test_checkpoint.py",
    ),
)

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

BUGS = (*SERVICE, *RUNS, *ASYNCHRONOUS, *TRAINING, *DATA, *INFERENCE, *TUNING, *BENCH, *RECIPES)
