"""Settings of Sphinx. `make docs` builds the site into `docs/_build/html`, without a network."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from clew.version import __version__

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # notebooks call `clew`
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["CLEW_SERVER"] = ""  # and send their runs to no server

project = "clew"
author = "The clew developers"
project_copyright = author
release = version = __version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "docstrings",
    "generated_reference",
    "repository_links",
]
exclude_patterns = ["_build", "_ext", "**/.ipynb_checkpoints"]
nitpicky = True
default_role = "literal"  # docstrings have code between single backticks
nitpick_ignore_regex = [("py:.*", ".*")]  # types in signatures: torch, numpy and inner modules have no pages here

myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 4
myst_links_external_new_tab = False

nb_execution_mode = "cache"  # a notebook is executed again only when it has changed
nb_execution_cache_path = str(HERE / "_build" / ".jupyter_cache")
nb_execution_timeout = 900  # seconds per cell: a busy machine is several times slower
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_merge_streams = True

autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
add_module_names = False
python_maximum_signature_line_length = 90
toc_object_entries_show_parents = "hide"
smartquotes = False  # two dashes are an option
napoleon_google_docstring = True
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = f"clew {__version__}"
html_static_path = ["_static"]
html_css_files = ["clew.css"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {"navigation_with_keys": True}
