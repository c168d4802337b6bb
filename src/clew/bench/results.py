"""The base class of all results of `clew bench`: plain data that is saved as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from clew.core.files import write_text


@dataclass
class BenchResult:
    """A result: a dataclass whose fields are plain data. Subclasses set `kind`."""

    kind: ClassVar[str]
    """The kind of the result; only results of the same kind can be compared."""
    format: ClassVar[int] = 1
    """The version of the file format."""

    def derived(self) -> dict[str, Any]:
        """Return figures that follow from the fields. They are saved too, for other programs."""
        return {}

    def save(self, path: Path) -> None:
        """Write the result to a JSON file, atomically."""
        document = {**asdict(self), "kind": self.kind, "format": self.format, **self.derived()}
        write_text(path, json.dumps(document, indent=1) + "\n")
