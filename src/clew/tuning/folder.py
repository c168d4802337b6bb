"""The study's folder. This object owns every file name in it."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clew.core.config import Document, read_document, to_yaml, validate
from clew.core.files import write_text
from clew.errors import ConfigError, RunError
from clew.runs import Run
from clew.tuning.config import TuneConfig


@dataclass(frozen=True)
class StudyFolder:
    """A study on disk: settings, what was proposed and found, a run folder a trial."""

    path: Path

    @classmethod
    def create(cls, path: Path, data: Mapping[str, Any]) -> StudyFolder:
        """Claim a folder that does not exist yet, with the settings of the study.

        Raises:
            RunError: the folder is taken.
        """
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            raise RunError(
                f"{path} exists already; go on with it (clew tune --resume {path}), or name another"
            ) from None
        folder = cls(path)
        for each in (folder.trials, folder.leases, folder.jobs, folder.handed, folder.coordinators):
            each.mkdir()
        write_text(folder.name_file, json.dumps({"name": f"{path.resolve().name}-{secrets.token_hex(4)}"}))
        write_text(folder.config_file, to_yaml(data))
        return folder

    @classmethod
    def open(cls, path: Path | str) -> StudyFolder:
        """One that was created before.

        Raises:
            RunError: there is none.
        """
        folder = cls(Path(path))
        if not folder.config_file.is_file() or not folder.name_file.is_file():
            raise RunError(f"{path}: no study there (no config.yaml and study.json); `clew tune run` makes one")
        return folder

    @property
    def config_file(self) -> Path:
        """The resolved settings, `tune` among them; written last, so its presence means the folder is whole."""
        return self.path / "config.yaml"

    @property
    def name_file(self) -> Path:
        """What Optuna calls the study."""
        return self.path / "study.json"

    @property
    def trials(self) -> Path:
        """The run folders."""
        return self.path / "trials"

    @property
    def leases(self) -> Path:
        """A file for every trial that somebody trains."""
        return self.path / "leases"

    @property
    def jobs(self) -> Path:
        """Log and exit code of every attempt at a trial."""
        return self.path / "jobs"

    @property
    def handed(self) -> Path:
        """A file for every trial that was asked for and not told: who has it."""
        return self.path / "handed"

    @property
    def coordinators(self) -> Path:
        """A file for everybody who hands out trials."""
        return self.path / "coordinators"

    @property
    def folds(self) -> Path:
        """The datasets of folds."""
        return self.path / "folds"

    @property
    def ask_lock(self) -> Path:
        """Held while a trial is asked for or changes hands."""
        return self.path / "ask.lock"

    @property
    def report_file(self) -> Path:
        """The page for people."""
        return self.path / "report.html"

    @property
    def name(self) -> str:
        """What Optuna calls the study."""
        return str(json.loads(self.name_file.read_text())["name"])

    def run(self, name: str) -> Run:
        """The run of a trial, or of a fold of it; it may not be there yet."""
        return Run(self.trials / name)

    def document(self) -> Document:
        """The settings, as read."""
        return read_document(self.config_file)

    def config(self) -> TuneConfig:
        """Those of the study.

        Raises:
            ConfigError: there are none, or they do not fit.
        """
        document = self.document()
        if not isinstance(document.data.get("tune"), dict):
            raise ConfigError(f"{self.config_file}: no section `tune`")
        places = {key[1:]: place for key, place in document.places.items() if key[0] == "tune"}
        return validate(TuneConfig, Document(document.data["tune"], places, document.source))


def run_name(trial: int, fold: int | None = None) -> str:
    """What a trial's run is called."""
    return f"trial-{trial:04d}" + ("" if fold is None else f"-fold-{fold}")
