"""Studies of a server: ask and tell from anywhere."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from clew.client.connection import Link
from clew.client.trial import Asked, StudyFacts, StudyRow, Trial
from clew.tuning.folder import StudyFolder

_PAGE = 500


class Studies:
    """Searches: what to try next, and what was found."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def make(
        self, name: str, tune: Mapping[str, Any], *, epochs: int = 1, group: str | None = None, elsewhere: bool = False
    ) -> StudyFacts:
        """Begin one; `tune` is what stands in the section `tune` of a YAML: space, objective, trials, sampler..."""
        body = {"name": name, "tune": dict(tune), "epochs": epochs, "group": group, "elsewhere": elsewhere}
        return StudyFacts.model_validate(self._link.call("POST", "/studies", body=body, again=elsewhere))

    def list(self) -> Iterator[StudyRow]:
        """All, the newest first."""
        return (StudyRow.model_validate(each) for each in self._link.pages("/studies"))

    def get(self, study: int) -> StudyFacts:
        """One."""
        return StudyFacts.model_validate(self._link.call("GET", f"/studies/{study}"))

    def trials(self, study: int) -> Iterator[Trial]:
        """Its trials, in order of number."""
        return (Trial.model_validate(each) for each in self._link.pages(f"/studies/{study}/trials"))

    def ask(self, study: int, *, count: int = 1, within: float | None = None) -> Sequence[Asked]:
        """Trials to be done; none when all that were wanted were asked for. With `within`, in seconds, a trial that was
        not told by then goes to the next who asks; an answer that got lost is then not lost for ever.
        """
        body = {"count": count, "within": within}
        found = self._link.call("POST", f"/studies/{study}/ask", body=body, again=within is not None)
        return [Asked.model_validate(each) for each in found]

    def report(self, study: int, trial: int, *, step: int, value: float, lease: str | None = None) -> bool:
        """A first look at the objective; whether the trial is hopeless."""
        body = {"trial": trial, "step": step, "value": value, "lease": lease}
        return bool(self._link.call("POST", f"/studies/{study}/report", body=body)["prune"])

    def tell(
        self,
        study: int,
        trial: int,
        values: float | Sequence[float] | None = None,
        *,
        pruned: bool = False,
        failed: str | None = None,
        lease: str | None = None,
    ) -> bool:
        """How a trial ended; False where that was told before. A value that is not finite makes it a failed one."""
        given = [] if values is None else [values] if isinstance(values, (int, float)) else list(values)
        if not all(map(math.isfinite, given)):
            failed, given = failed or f"its objective is {', '.join(map(str, given))}", []
        body = {"trial": trial, "values": given, "pruned": pruned, "failed": failed, "lease": lease}
        return bool(self._link.call("POST", f"/studies/{study}/tell", body=body)["told"])

    def best(self, study: int) -> Sequence[Trial]:
        """The best trial, or the front."""
        return [Trial.model_validate(each) for each in self._link.call("GET", f"/studies/{study}/best")]

    def push(self, folder: Path | str) -> int:
        """Bring in a study's folder as it stands: its settings and how its trials ended; its number. Its runs are
        pushed as runs.
        """
        from clew.tuning.study import Study

        study = Study.open(folder)
        tune = study.config.model_dump(mode="json")
        made = self.make(StudyFolder(Path(folder)).name, tune, elsewhere=True)
        found = iter(study.trials())
        while page := list(islice(found, _PAGE)):
            sent = [{**_plain(vars(each)), "run": each.name} for each in page]
            self._link.call("PUT", f"/studies/{made.id}/trials", body={"trials": sent})
        return made.id


def _plain(facts: Mapping[str, Any]) -> dict[str, Any]:
    known = ("number", "state", "settings", "values", "reports", "seconds", "attempts")
    told = {**{name: facts[name] for name in known}, "begun": facts["started"]}
    reports = {step: value if math.isfinite(value) else None for step, value in facts["reports"].items()}
    return {**told, "values": list(facts["values"]), "reports": reports, "reason": facts["reason"][:2000]}
