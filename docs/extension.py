"""What the documentation adds to Sphinx: formulas, links, the gallery, tables of benchmarks."""

import re
import shutil
import tempfile
from pathlib import Path

from cycler import cycler
from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from matplotlib import rcParams
from render import result_files, result_lines
from sphinx.domains.python import PyXRefRole
from sphinx.transforms import SphinxTransform
from sphinx.util.docutils import SphinxDirective
from sphinx.util.logging import getLogger
from sphinx_gallery.scrapers import matplotlib_scraper

# Of all figures of the gallery, which are small there.
LOOK = {
    "axes.grid": True,
    "axes.prop_cycle": cycler(color=["#0072B2", "#D55E00", "#009E73", "#666666"]),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "figure.constrained_layout.use": True,
    "figure.facecolor": "white",
    "figure.figsize": (5.6, 3.9),
    "font.size": 13.0,
    "grid.alpha": 0.4,
    "lines.linewidth": 2.5,
    "lines.markersize": 8.0,
    "savefig.dpi": 150.0,
}

# In the order in which a newcomer reads them; the others follow by name.
FIRST = (
    "first_hour",
    "first_model",
    "choose_epsilon",
    "tail",
    "item_features",
    "personal_levels",
    "local_privacy",
    "private_search",
    "pipeline_ledger",
    "release",
    "serve_model",
    "linkage",
    "spammer",
)


def reading_order(name):
    """Return the key by which the files of the examples are sorted."""
    stem = Path(name).stem.removeprefix("plot_")
    return FIRST.index(stem) if stem in FIRST else len(FIRST), name


def look(gallery_conf, fname):
    """Give the figures of an example the look of the gallery."""
    rcParams.update(LOOK)


def alone(gallery_conf, script_vars):
    """Move an example into a folder of its own, where it may write files; it gets no arguments."""
    folder = script_vars["folder"] = tempfile.TemporaryDirectory()  # as long as the variables live
    script_vars["src_file"] = shutil.copy(script_vars["src_file"], folder.name)
    return []


def figures(block, block_vars, gallery_conf):
    """Keep the figures of an example whole, texts beside the axes too."""
    return matplotlib_scraper(block, block_vars, gallery_conf, bbox_inches="tight")


def link_or_code(name, rawtext, text, lineno, inliner, options=None, content=()):
    """Read `name` in a docstring: a link if the name has a page, code if not."""
    if not re.fullmatch(r"[A-Za-z_][\w.]*", text):
        return [nodes.literal(rawtext, text)], []
    found, messages = PyXRefRole()("py:obj", rawtext, text, lineno, inliner, options or {}, content)
    for node in found:
        node["or_code"] = True
    return found, messages


def leave_as_code(app, env, node, contnode):
    """Tell Sphinx that a name without a page is no broken link."""
    return contnode if node.get("or_code") else None


# The theme makes boxes of this class scroll on narrow pages, by the keyboard too.
MATH_BOX = '<div class="pst-scrollable-table-container formula">{}</div>'


def _write_math(translator, node, as_block):
    # MathML, which browsers show by themselves: MathJax would come from somebody else's server
    try:
        formula = tex2mathml(node.astext(), as_block=as_block)
        translator.body.append(MATH_BOX.format(formula) if as_block else formula)
    except MathError as error:
        getLogger(__name__).warning("%s in %s", error, node.astext(), location=node)
    raise nodes.SkipNode


def inline_math(translator, node):
    """Write a formula in a line."""
    _write_math(translator, node, as_block=False)


def block_math(translator, node):
    """Write a formula of its own."""
    _write_math(translator, node, as_block=True)


def plain_text_as_it_stands(app, what, name, obj, options, lines):
    """Set the plain-text mathematics of a docstring as it stands in the source.

    reStructuredText would run the lines of an indented formula together, as a quotation, and
    read |x| and n_iter_ in a line as references. Only what is no block of its own is touched.
    """
    written, base, block, doctest = [], 0, None, False
    for line in lines:
        indent = len(line) - len(line.lstrip())
        doctest = bool(line) and (doctest or line.lstrip().startswith(">>> "))
        if doctest:
            written.append(line)
            continue
        if line and block is not None and indent <= block:
            block = None
        if line and block is None:
            previous = next((text for text in reversed(written) if text), "")
            if written and not written[-1] and previous and indent > base:
                written += [" " * base + "::", ""]
                block = base
            elif line.endswith("::") or line.lstrip().startswith(".. "):
                block = indent
            else:
                marker = re.match(r"(- |\* |\d+\. )?", line.lstrip())
                base = indent + len(marker.group())
                line = _escaped(line)
        written.append(line)
    lines[:] = written


def _escaped(line):
    parts = re.split(r"(``.*?``|`.*?`)", line)
    parts[::2] = [
        re.sub(r"(\w)_(?=[,)])", r"\1\\_", part.replace("|", r"\|")) for part in parts[::2]
    ]
    return "".join(parts)


def skip_foreign(app, what, name, obj, skip, options):
    """Leave out what scikit-learn's base classes document themselves."""
    foreign = (getattr(obj, "__module__", None) or "").split(".")[0] == "sklearn"
    return True if foreign else None


class DarkTwins(SphinxTransform):
    """Where `x.png` has a sibling `x-dark.png`, show the one that suits the visitor's colours."""

    default_priority = 500

    def apply(self):
        """Put each twin beside its image, with the same words for those who see neither."""
        for image in list(self.document.findall(nodes.image)):
            name, path = self.env.relfn2path(image["uri"])
            twin = Path(path).with_stem(f"{Path(path).stem}-dark")
            if twin.is_file():
                dark = image.deepcopy()
                dark["uri"] = f"/{Path(name).with_name(twin.name).as_posix()}"
                image["classes"].append("only-light")
                dark["classes"].append("only-dark")
                image.parent.insert(image.parent.index(image) + 1, dark)


def accessible(app, pagename, templatename, context, doctree):
    """Mend what a screen reader stumbles over: headers without text, triangles without a name."""
    if "body" in context:
        empty = r'<th(?: class="head")?>(<p></p>)?</th>'
        context["body"] = re.sub(empty, "<td></td>", context["body"])
    toctree = context.get("generate_toctree_html")
    if toctree:
        context["generate_toctree_html"] = lambda *args, **kwargs: str(
            toctree(*args, **kwargs)
        ).replace("<summary>", '<summary aria-label="More pages">')


class BenchmarkResults(SphinxDirective):
    """The tables of an entry of benchmarks/run.py, from the files of its last runs."""

    required_arguments = 1

    def run(self):
        """Return what the files say."""
        self.env.note_reread()  # the files change, and new ones come
        lines = [line for path in result_files(self.arguments[0]) for line in result_lines(path)]
        return self.parse_text_to_nodes("\n".join(lines))


class Modules(SphinxDirective):
    """The docstrings of modules and of functions(), each under its name."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self):
        """Return a section for each name."""
        lines = []
        for name in self.arguments[0].split():
            kind = "autofunction" if name.endswith("()") else "automodule"
            title = f"``{name}``"
            lines += [title, "-" * len(title), "", f".. {kind}:: {name.removesuffix('()')}", ""]
        return self.parse_text_to_nodes("\n".join(lines), allow_section_headings=True)


def setup(app):
    """Register all of it."""
    app.add_directive("benchmark-results", BenchmarkResults)
    app.add_directive("modules", Modules)
    app.connect("autodoc-skip-member", skip_foreign)
    # before numpydoc takes the docstring apart
    app.connect("autodoc-process-docstring", plain_text_as_it_stands, priority=400)
    app.add_css_file("gallery.css", priority=900)  # after those of sphinx-gallery
    app.add_html_math_renderer("mathml", (inline_math, None), (block_math, None))
    app.add_role("link_or_code", link_or_code)
    app.connect("missing-reference", leave_as_code)
    app.add_transform(DarkTwins)
    app.connect("html-page-context", accessible, priority=900)  # after the theme
    return {"parallel_read_safe": True, "parallel_write_safe": True}
