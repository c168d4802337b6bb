"""Settings of Sphinx. `make docs` builds the site into `docs/_build/html`, without a network."""

from __future__ import annotations

import sys
from pathlib import Path

from clew.version import __version__

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

project = "clew"
author = "The clew developers"
project_copyright = author
release = version = __version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "generated_reference", "repository_links"]
exclude_patterns = ["_build", "_ext", "**/.ipynb_checkpoints"]
nitpicky = True
default_role = None

myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 4
myst_links_external_new_tab = False

nb_execution_mode = "cache"  # a notebook is executed again only when it has changed
nb_execution_cache_path = str(HERE / "_build" / ".jupyter_cache")
nb_execution_timeout = 240
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_merge_streams = True

autodoc_typehints = "none"  # signatures show them
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
add_module_names = False
napoleon_google_docstring = True
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = f"clew {__version__}"
html_static_path = ["_static"]
html_css_files = ["clew.css"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {"navigation_with_keys": True}
