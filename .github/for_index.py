"""Make README.md and pyproject.toml those of a release: for_index.py REPOSITORY TAG.

A package index shows the README alone, so that its relative links lead nowhere there. They become
addresses in the repository, at the tag; the project's URLs are written down with them. The workflow
of releases calls this, in the folder of the two files: what the repository keeps has no address.
"""

import re
import sys
from pathlib import Path

repository, tag = sys.argv[1:]
blob, raw = (f"{repository}/{kind}/{tag}/" for kind in ("blob", "raw"))

readme = Path("README.md")
text = readme.read_text(encoding="utf-8")
text = re.sub(r"\]\((?!https?:|#)", f"]({blob}", text)
text = re.sub(r'((?:src|srcset)=")(?!https?:)', rf"\g<1>{raw}", text)
readme.write_text(text, encoding="utf-8")

urls = {
    "Repository": repository,
    "Issues": f"{repository}/issues",
    "Documentation": f"{blob}docs/index.md",
    "Changelog": f"{blob}CHANGELOG.md",
}
lines = "".join(f'{name} = "{url}"\n' for name, url in urls.items())
project = Path("pyproject.toml")
text = project.read_text(encoding="utf-8")
text = text.replace("[project.scripts]\n", f"[project.urls]\n{lines}\n[project.scripts]\n", 1)
project.write_text(text, encoding="utf-8")
