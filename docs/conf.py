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
    "sphinx_copybutton",
    "sphinx_design",
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
myst_enable_extensions = ["attrs_block", "colon_fence", "dollarmath"]
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

# Copied code runs as it is: without prompts, and no button stands at outputs and formulas.
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_selector = "div:not(.highlight-none, .highlight-text) > div.highlight > pre"

repository = ""  # its address: the header links to it, where there is one

html_theme = "pydata_sphinx_theme"
html_title = "skdpmf"
html_favicon = "_static/favicon.svg"
html_static_path = ["_static"]
html_css_files = ["skdpmf.css"]
html_search_scorer = str(docs / "scorer.js")
html_context = {"default_mode": "auto"}  # of light and dark: as the visitor's system is
html_copy_source = False
html_show_sourcelink = False
html_sidebars = {"index": [], "**": ["sidebar-nav-bs"]}
html_math_renderer = "mathml"
html_theme_options = {
    "logo": {
        "image_light": "_static/logo.svg",
        "image_dark": "_static/logo-dark.svg",
        "alt_text": "",
        "text": "skdpmf",
    },
    "icon_links": [{"name": "Repository", "url": repository, "icon": "fa-brands fa-git-alt"}]
    if repository
    else [],
    "navbar_align": "left",
    "navbar_end": ["version", "theme-switcher", "navbar-icon-links"],
    "header_links_before_dropdown": 6,
    "search_bar_text": "Search these pages",
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "footer_start": ["copyright"],
    "footer_end": ["theme-version"],
}
