"""Planted bugs in the service, runs and training."""

from __future__ import annotations

from tests.mutation.bug import Bug

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
