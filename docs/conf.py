"""How Sphinx makes the documentation: `make docs` writes docs/_build/html."""

import sys
from pathlib import Path

import skdpmf

docs = Path(__file__).resolve().parent
sys.path[:0] = [str(docs), str(docs.parent / "benchmarks")]  # for `extension` and its `render`

project = "skdpmf"
copyright = "The skdpmf developers, BSD-3-Clause"
release = version = skdpmf.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "myst_parser",
    "sphinx_gallery.gen_gallery",
    "extension",
]
exclude_patterns = ["_build"]
templates_path = ["_templates"]
nitpicky = True
highlight_language = "none"  # of indented formulas; code says what it is

default_role = "link_or_code"
add_module_names = False
autodoc_typehints = "none"  # numpydoc's lists of parameters tell the types, in words
autosummary_generate = True
numpydoc_show_class_members = False  # the template of a class has them
nitpick_ignore_regex = [(r"py:.*", r"sklearn\..*")]  # no inventory is fetched
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "auto_examples",
    # which are run: one needs more than the environment of the documentation, and has a drawing
    "filename_pattern": r"/(?!dask_cluster)\w+\.py$",
    "default_thumb_file": str(docs / "images" / "dask_cluster.png"),
    "reset_argv": "extension.alone",
    "reset_modules": ("matplotlib", "extension.look"),
    "image_scrapers": ("extension.figures",),
    "thumbnail_size": (560, 392),
    "within_subsection_order": "extension.reading_order",
    "download_all_examples": False,
    "show_signature": False,
    "parallel": 2,
    "write_computation_times": False,  # that page would load scripts from elsewhere
}

html_theme = "pydata_sphinx_theme"
html_title = "skdpmf"
html_static_path = ["_static"]
html_css_files = ["skdpmf.css"]
html_copy_source = False
html_show_sourcelink = False
html_sidebars = {name: [] for name in ("getting-started", "protection", "choosing")}
html_math_renderer = "mathml"
html_theme_options = {
    "navbar_end": ["theme-switcher"],
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "header_links_before_dropdown": 7,
}
