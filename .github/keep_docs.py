"""Put a built documentation into the site of all versions: keep_docs.py HTML SITE VERSION.

Each version has a folder of its own there, which a later call for the same version replaces. The
page of the site lists them: releases, the newest first, and then what is being developed.
"""

import re
import shutil
import sys
from pathlib import Path

html, site, version = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
if not re.fullmatch(r"[A-Za-z0-9][\w.+-]*", version):
    sys.exit(f"VERSION={version!r} must be the name of a folder: a branch or a tag without '/'.")
shutil.rmtree(site / version, ignore_errors=True)
shutil.copytree(html, site / version)
(site / ".nojekyll").touch()  # else GitHub Pages leaves out folders such as _static


def order(name):
    """Return what sorts branches before tags, and tags by their numbers."""
    return re.match(r"v\d", name) is not None, [int(n) for n in re.findall(r"\d+", name)]


names = sorted((path.parent.name for path in site.glob("*/index.html")), key=order, reverse=True)
links = "".join(f'<li><a href="{name}/">{name}</a></li>\n' for name in names)
(site / "index.html").write_text(
    '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
    '<meta name="viewport" content="width=device-width">\n<title>skdpmf: all versions</title>\n'
    f"<h1>skdpmf: documentation of all versions</h1>\n<ul>\n{links}</ul>\n</html>\n",
    encoding="utf-8",
)
