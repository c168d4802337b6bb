"""The folder of a study. `StudyFolder` defines every file name in it."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clew.core.config import Document, read_document, to_yaml, validate
from clew.core.files import write_text
from clew.core.format_version import check_format_version
from clew.errors import ConfigError, RunError
from clew.runs import Run
from clew.runs.folder import find_run_path
from clew.tuning.config import TuneConfig

FORMAT = 1
"""Version of the folders of studies. It changes when an older clew could not read a new folder."""
STUDIES = Path("studies")
"""The folder in which studies are created by default."""


@dataclass(frozen=True)
class StudyFolder:
    """A study on disk: settings, the state of its trials, and one run folder per trial."""

    path: Path

    @classmethod
    def create(cls, path: Path, data: Mapping[str, Any]) -> StudyFolder:
        """Create the folder and write the settings of the study.

        Raises:
            RunError: The folder exists.
        """
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            raise RunError(
                f"{path} exists already; resume it (clew tune run --resume {path}), or choose another folder"
            ) from None
        folder = cls(path)
        for subfolder in (folder.trials, folder.leases, folder.jobs, folder.owners, folder.coordinators):
            subfolder.mkdir()
        name = f"{path.resolve().name}-{secrets.token_hex(4)}"
        write_text(folder.name_file, json.dumps({"format": FORMAT, "name": name}))
        write_text(folder.config_file, to_yaml(data))
        return folder

    @classmethod
    def open(cls, path: Path | str) -> StudyFolder:
        """Open a study that was created before, by its folder or by its name in `studies/`.

        Raises:
            RunError: The folder holds no study, or one of a newer clew.
        """
        folder = cls(find_run_path(path, STUDIES))
        if not folder.config_file.is_file() or not folder.name_file.is_file():
            raise RunError(
                f"{path}: no study (config.yaml and study.json are missing); create one with `clew tune run`"
            )
        check_format_version(folder.path, folder._facts().get("format"), FORMAT, RunError)
        return folder

    @property
    def config_file(self) -> Path:
        """All settings, including `tune`. Written last: if it exists, the folder is complete."""
        return self.path / "config.yaml"

    @property
    def name_file(self) -> Path:
        """The file with the name of the study in Optuna."""
        return self.path / "study.json"

    @property
    def trials(self) -> Path:
        """The run folders of the trials."""
        return self.path / "trials"

    @property
    def leases(self) -> Path:
        """One lease file per running attempt of a trial."""
        return self.path / "leases"

    @property
    def jobs(self) -> Path:
        """Log and exit code of every attempt of a trial."""
        return self.path / "jobs"

    @property
    def owners(self) -> Path:
        """One file per running trial, with the name of its owner."""
        return self.path / "owners"

    @property
    def coordinators(self) -> Path:
        """One heartbeat file per coordinator."""
        return self.path / "coordinators"

    @property
    def folds(self) -> Path:
        """The datasets of the folds."""
        return self.path / "folds"

    @property
    def ask_lock(self) -> Path:
        """The lock that is held while a trial is asked for or changes its owner."""
        return self.path / "ask.lock"

    @property
    def report_file(self) -> Path:
        """The HTML report."""
        return self.path / "report.html"

    @property
    def name(self) -> str:
        """The name of the study in Optuna."""
        return str(self._facts()["name"])

    def _facts(self) -> dict[str, Any]:
        try:
            return dict(json.loads(self.name_file.read_text()))
        except (ValueError, TypeError) as error:
            raise RunError(f"{self.name_file}: damaged ({error}); restore it from a backup") from error

    def run(self, name: str) -> Run:
        """Return the run of a trial or fold. It may not exist yet."""
        return Run(self.trials / name)

    def document(self) -> Document:
        """Return all settings."""
        return read_document(self.config_file)

    def config(self) -> TuneConfig:
        """Return the section `tune`.

        Raises:
            ConfigError: The section is missing or not valid.
        """
        document = self.document()
        if not isinstance(document.data.get("tune"), dict):
            raise ConfigError(f"{self.config_file}: no section `tune`")
        lines = {key[1:]: line for key, line in document.places.items() if key[0] == "tune"}
        return validate(TuneConfig, Document(document.data["tune"], lines, document.source))


def run_name(trial: int, fold: int | None = None) -> str:
    """Return the name of the run of a trial or fold."""
    return f"trial-{trial:04d}" + ("" if fold is None else f"-fold-{fold}")
