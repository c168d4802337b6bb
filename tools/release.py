"""Build the packages of a release, check them, install the wheel in a fresh environment and run the demo there.

    python tools/release.py [--output dist] [--keep FOLDER]

Nothing is uploaded. The fresh environment gets only what `pyproject.toml` requires, in the versions of
`requirements.lock`: a requirement that is missing in it is noticed.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Run all steps. The first one that fails ends the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="folder of the packages")
    parser.add_argument("--keep", type=Path, default=None, help="folder of the fresh environment; default: temporary")
    arguments = parser.parse_args()
    check_changelog()
    wheel = build(arguments.output)
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.keep or Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        install(wheel, folder / "environment")
        run_demo(folder)
    say(f"{wheel.name} is ready; docs/contributing/release.md has the next steps")


def check_changelog() -> None:
    """The version that is built has a section in the changelog.

    Raises:
        SystemExit: It has none.
    """
    text = (ROOT / "src" / "clew" / "version.py").read_text()
    (version,) = re.findall(r'__version__ = "([^"]+)"', text)
    if f"\n## {version}" not in (ROOT / "CHANGELOG.md").read_text():
        sys.exit(f"CHANGELOG.md has no section '## {version}'")


def build(output: Path) -> Path:
    """Build wheel and sdist, check their metadata, and return the wheel."""
    for old in output.glob("clew-*"):
        old.unlink()
    call(sys.executable, "-m", "build", "--no-isolation", "--outdir", output, ROOT)
    call(sys.executable, "-m", "twine", "check", "--strict", *sorted(output.glob("clew-*")))
    (wheel,) = output.glob("clew-*.whl")
    return wheel


def install(wheel: Path, folder: Path) -> None:
    """Make an environment with the wheel and what it requires."""
    venv.create(folder, with_pip=True, clear=True)
    python, lock = folder / "bin" / "python", ROOT / "requirements.lock"
    (torch,) = re.findall(r"^torch==\S+", lock.read_text(), flags=re.MULTILINE)
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    call(*pip, torch)  # first, so that nothing else chooses another build
    call(*pip, "--constraint", lock, wheel)


def run_demo(folder: Path) -> None:
    """Run the demo of the installed wheel, outside of the repository."""
    clew = folder / "environment" / "bin" / "clew"
    call(clew, "--version", cwd=folder)
    call(clew, "demo", "--output", folder / "demo", cwd=folder)


def call(*words: object, cwd: Path = ROOT) -> None:
    """Run a command, and end the program if it fails."""
    started = time.monotonic()
    say(" ".join(Path(str(word)).name for word in words))
    ended = subprocess.run([str(word) for word in words], cwd=cwd, check=False)
    if ended.returncode:
        sys.exit(f"release: failed with {ended.returncode}: {' '.join(map(str, words))}")
    say(f"  {time.monotonic() - started:.0f} s")


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"release: {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
