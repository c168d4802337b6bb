"""Links from a page to files of the repository that are not pages: source, tests, examples.

On GitHub a page links to `../../tests/test_docs.py`. The site has no such file, so the link leads to the repository. A
target that does not exist is a warning, and `make docs` fails.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.transforms import SphinxTransform
from sphinx.util import logging

ROOT = Path(__file__).parents[2]
REPOSITORY = "https://github.com/clew-hep/clew"
_log = logging.getLogger(__name__)


class RepositoryLinks(SphinxTransform):
    """Replaces links that leave `docs/` by addresses of the repository."""

    default_priority = 5  # before Sphinx collects downloads

    def apply(self, **kwargs: Any) -> None:
        """Called by Sphinx for every page."""
        for node in list(self.document.findall(_leaves_docs)):
            path = self._path(node)
            if path is None:
                _log.warning("no such file in the repository: %s", node["reftarget"], location=node)
                continue
            kind = "tree" if path.is_dir() else "blob"
            address = f"{REPOSITORY}/{kind}/main/{path.relative_to(ROOT).as_posix()}"
            link = nodes.reference("", "", *node.children, refuri=address, internal=False)
            if node.get("title") or node.get("reftitle"):
                link["reftitle"] = node.get("title") or node["reftitle"]
            node.replace_self(link)

    def _path(self, node: nodes.Element) -> Path | None:
        """Return the file or folder that a link means. Sphinx has removed the ending of what it takes for a page."""
        folder = (Path(self.env.srcdir) / self.env.docname).parent
        path = (folder / str(node["reftarget"])).resolve()
        candidates = (path, path.with_suffix(".md"), path.with_suffix(".ipynb"))
        return next((each for each in candidates if each.exists() and ROOT in each.parents), None)


def _leaves_docs(node: nodes.Node) -> bool:
    if isinstance(node, addnodes.download_reference):
        return str(node["reftarget"]).startswith("..")
    return isinstance(node, addnodes.pending_xref) and (
        str(node["reftarget"]).startswith("/") or str(node["reftarget"]).startswith("../..")
    )


def setup(app: Any) -> dict[str, Any]:
    """Called by Sphinx."""
    app.add_transform(RepositoryLinks)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
