"""Take pictures of the built site, as it is at a desk and on a phone, to docs/images/site-*.png.

make docs && .venv/bin/python -m docs.screenshots
"""

import io
from pathlib import Path

from PIL import Image

from tests.chromium import DESK, PHONE, browser, page

DOCS = Path(__file__).resolve().parent
PAGES = {
    "front": "index",
    "gallery": "auto_examples/index",
    "example": "auto_examples/plot_first_model",
    "guide": "getting-started",
}

with browser() as chromium:
    for width in (DESK, PHONE):
        with page(chromium, width) as opened:
            for name, path in PAGES.items():
                opened.goto((DOCS / "_build" / "html" / f"{path}.html").as_uri())
                picture = Image.open(io.BytesIO(opened.screenshot()))
                # colours by a palette make small files
                picture.convert("RGB").quantize(256).save(
                    DOCS / "images" / f"site-{name}-{width}.png", optimize=True
                )
