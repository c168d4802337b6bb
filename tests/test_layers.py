"""The rules for imports: layers, heavy imports, public names only in recipes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import clew

SOURCE = Path(clew.__file__).parent
LAYERS = (
    {"version", "errors"},
    {"core", "figure"},
    {"data.table", "client.credentials"},
    {"client.server_proof"},
    {"storage", "client.connection"},
    {"data.expression"},
    {"metrics", "data.transforms", "data.readers", "data.writers", "data.table_cache"},
    {"readers", "transforms"},
    {"recipe", "runs"},
    {"recipe_errors"},
    {"data.dataset", "jobs", "storage.models"},
    {"data.prepare"},
    {"models"},
    {"training"},
    {"inference"},
    {"tuning", "distributed", "strategies", "rules", "weaver"},
    {"settings"},
    {"client"},
    {"jobs.agent"},
    {"server", "bench", "testing"},
    {"cli"},
    {"__main__"},
)
"""From the lowest. A dotted name is a part of a package that is on another layer than the rest of it."""
PUBLIC_MODULES = {
    "clew.errors",
    "clew.figure",
    "clew.metrics",
    "clew.data.readers",
    "clew.data.transforms",
    "clew.data.writers",
    "clew.data.table_cache",
    "clew.training.strategies",
    "clew.training.asynchronous.rules",
    "clew.testing",
    "clew.weaver",
}
HEIGHT = {name: height for height, names in enumerate(LAYERS) for name in names}
HEAVY = {
    "torch": {"data.dataset", "models", "training", "inference", "tuning", "distributed", "bench", "recipes"},
    "mpi4py": {"training", "jobs", "data.prepare"},
    "sqlalchemy": {"server"},
    "fastapi": {"server"},
    "uvicorn": {"server"},
}
FILES = sorted(path for path in SOURCE.rglob("*.py"))


def _imports(nodes: list[ast.stmt]) -> Iterator[tuple[str, str | None]]:
    """Every (module, name) imported, function bodies included, `if TYPE_CHECKING:` left out."""
    for node in nodes:
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "clew imports by full names"
            yield from ((node.module or "", alias.name) for alias in node.names)
        for field in ("body", "orelse", "handlers", "finalbody"):
            yield from _imports(getattr(node, field, []))


def _part(module: str) -> str:
    """The part of clew that a dotted name (without `clew.`) belongs to: the longest prefix that has a layer."""
    parts = module.split(".")
    prefixes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((prefix for prefix in prefixes if prefix in HEIGHT), parts[0])


def _package_of(path: Path) -> str:
    return _part(".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"))


def _targets(module: str, name: str | None) -> str | None:
    """The part of clew that an import refers to, or None for the package itself and other packages."""
    parts = module.split(".")
    if parts[0] != "clew":
        return None
    if len(parts) > 1:
        return _part(".".join([*parts[1:], *([name] if name else [])]))
    return name if name in HEIGHT else None


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_down(path: Path) -> None:
    package = _package_of(path)
    if package in ("__init__", "data", "recipes"):
        return
    for module, name in _imports(ast.parse(path.read_text()).body):
        target = _targets(module, name)
        if target is not None and target != package:
            assert target in HEIGHT, f"{target} has no layer: add it to LAYERS and docs/explanation/architecture.md"
            assert HEIGHT[target] < HEIGHT[package], f"{package} may not import {target}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_heavy_packages_stay_where_they_belong(path: Path) -> None:
    for module, _ in _imports_at_top(path):
        package = module.split(".")[0]
        if package in HEAVY:
            assert _package_of(path) in HEAVY[package], f"{package} may not be imported here"


def _imports_at_top(path: Path) -> Iterator[tuple[str, str | None]]:
    top = [node for node in ast.parse(path.read_text()).body if isinstance(node, (ast.Import, ast.ImportFrom))]
    return _imports(list(top))


@pytest.mark.parametrize("path", sorted((SOURCE / "recipes").rglob("*.py")), ids=lambda path: path.name)
def test_recipes_use_public_names_only(path: Path) -> None:
    recipe_package = ".".join(["clew", *path.relative_to(SOURCE).parts[:2]])
    for module, name in _imports(ast.parse(path.read_text()).body):
        if module == "clew":
            assert name in clew.__all__, f"clew.{name} is not public"
        elif module.startswith("clew."):
            assert module in PUBLIC_MODULES or module.startswith(recipe_package), f"{module} is not public"


def test_every_file_has_a_layer() -> None:
    parts = {_package_of(path) for path in FILES} - {"__init__", "data", "recipes"}
    assert parts <= HEIGHT.keys()
