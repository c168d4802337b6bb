"""Container images: the words that run a command in one, by Apptainer, Singularity, Podman or Pyxis."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from clew.errors import ConfigError

Runtime: TypeAlias = Literal["apptainer", "singularity", "podman", "pyxis"]
"""What runs an image. Pyxis is a plugin of Slurm: srun itself starts the image."""
_ON_A_MACHINE: tuple[Runtime, ...] = ("apptainer", "singularity", "podman")
"""Runtimes that a machine without a scheduler may have, the preferred first."""
DIGEST_VARIABLE = "CLEW_IMAGE_DIGEST"
"""An environment variable of processes in an image: the image's digest, which they cannot find out themselves."""
_SHARED_VARIABLES = (
    "CLEW_*",
    "CUDA_VISIBLE_DEVICES",
    "GLOO_*",
    "HIP_VISIBLE_DEVICES",
    "NCCL_*",
    "OMPI_*",
    "OMP_*",
    "PMIX_*",
    "PMI_*",
    "SLURM*",
)
"""Variables that Podman passes on by name, so that no value is on a command line. Apptainer passes all of them on."""


@dataclass(frozen=True)
class Container:
    """An image and what runs it.

    Example:
        >>> Container("/images/clew.sif", options=("--nv",)).words()
        ['apptainer', 'exec', '--nv', '/images/clew.sif']
    """

    image: str
    runtime: Runtime = "apptainer"
    options: tuple[str, ...] = ()
    """Options of the runtime, such as `--nv` or `--bind=/data`."""

    def words(self, folders: Sequence[str] = (), working_folder: str | None = None) -> list[str]:
        """Return the words in front of a command that run it in the image.

        Args:
            folders: Folders and files of this machine that the command needs, under the same path.
            working_folder: Where the command starts.
        """
        if self.runtime == "podman":
            return [*_podman(folders, working_folder), *self.options, self.image]
        binds = [f"--bind={folder}" for folder in folders]
        start = [] if working_folder is None else [f"--pwd={working_folder}"]
        return [self.runtime, "exec", *binds, *start, *self.options, self.image]

    @property
    def started_by_srun(self) -> bool:
        """Whether options of srun start the image, and no words in front of a command."""
        return self.runtime == "pyxis"

    @property
    def detached(self) -> bool:
        """Whether the processes in the image are no children of the process that started it."""
        return self.runtime == "podman"

    def srun_options(self, folders: Sequence[str], working_folder: str) -> list[str]:
        """Return the options of srun that start the image (Pyxis). Arguments are those of `words`."""
        mounts = ",".join(f"{folder}:{folder}" for folder in folders)
        options = [f"--container-image={self.image}", f"--container-mounts={mounts}"]
        return [*options, f"--container-workdir={working_folder}", "--no-container-entrypoint", *self.options]

    def digest(self) -> str | None:
        """Return the image's digest if the runtime knows it. A .sif file is its own record: the job hashes it."""
        if self.runtime != "podman":
            return None
        done = subprocess.run(self.digest_words(), capture_output=True, text=True, check=False)
        return done.stdout.strip() or None

    def digest_words(self) -> list[str]:
        """Return the words of the command that prints the digest of an image of Podman."""
        return ["podman", "image", "inspect", "--format={{.Digest}}", self.image]


def _podman(folders: Sequence[str], working_folder: str | None) -> list[str]:
    """Podman like Apptainer: only the file system is the image's own. Ranks find each other, and limits hold."""
    words = ["podman", "run", "--rm", "--network=host", "--pid=host", "--ipc=host", "--entrypoint="]
    words += [f"--env={name}" for name in _SHARED_VARIABLES]
    words += [f"--volume={folder}:{folder}" for folder in folders]
    return [*words, *([] if working_folder is None else [f"--workdir={working_folder}"])]


def local_runtime() -> Runtime | None:
    """Return the runtime of this machine; None if it has none."""
    return next((name for name in _ON_A_MACHINE if shutil.which(name)), None)


def local_container(image: str, *, options: Sequence[str] = (), gpus: bool = False) -> Container:
    """Return an image as this machine runs it.

    Args:
        image: A .sif file, a name that Podman knows, or a URL such as docker://registry/clew:0.1.
        options: More options of the runtime.
        gpus: Whether the job uses GPUs.

    Raises:
        ConfigError: This machine cannot run images.
    """
    runtime = local_runtime()
    if runtime is None:
        raise ConfigError(
            f"--container {image}: this machine has no {', '.join(_ON_A_MACHINE)} in its PATH; "
            "install one, or choose a site that has one (--on SITE)"
        )
    if runtime == "podman" and image.endswith(".sif"):
        raise ConfigError(f"--container {image}: Podman cannot run it; name an image of Podman, or install Apptainer")
    return Container(image, runtime, (*(_gpu_options(runtime) if gpus else ()), *options))


def _gpu_options(runtime: Runtime) -> tuple[str, ...]:
    return ("--device=nvidia.com/gpu=all", "--security-opt=label=disable") if runtime == "podman" else ("--nv",)


def mounted_folders(*paths: str | Path | None) -> list[str]:
    """Return the paths that exist here, each once, without those inside of another. A pattern counts as its folder.

    Args:
        paths: Paths, patterns and other texts; only absolute paths count.

    Example:
        >>> mounted_folders("/usr/share", "/usr/share/doc", "tracking", None)
        ['/usr/share']
    """
    places = {_without_pattern(str(path).removeprefix("@")) for path in paths if path is not None}
    present = sorted(place for place in places if place.is_absolute() and place != Path("/") and _exists(place))
    return [str(place) for place in present if not any(other in place.parents for other in present)]


def _without_pattern(text: str) -> Path:
    path = Path(text)
    return next((part.parent for part in reversed((path, *path.parents)) if set("*?[") & set(part.name)), path)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a long text is no path
        return False
