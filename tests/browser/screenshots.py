"""Pictures of the page for the documentation, with a model of made-up films.

python -m tests.browser.screenshots
"""

import tempfile
from pathlib import Path

from skdpmf import AdaptiveWeightALS, PrivacyBudget
from skdpmf.commands.page import page_files, write_page
from skdpmf.data import make_ratings
from tests.browser.common import Server
from tests.chromium import DESK, PHONE, browser, page

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
SHOTS = (("browser", DESK, 1130, "light"), ("browser-phone", PHONE, 844, "dark"))


def main():
    data = make_ratings(3000, 400, random_state=3, as_frame=True)
    model = AdaptiveWeightALS(PrivacyBudget(4.0, 1e-5), random_state=0).fit(data.matrix)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model.save(folder / "films.skdpmf", catalogue=data.catalogue)
        write_page(page_files((folder / "films.skdpmf").read_bytes()), folder)
        with Server(folder) as server, browser() as chromium:
            for image, width, height, scheme in SHOTS:
                with page(chromium, width, color_scheme=scheme) as opened:
                    opened.set_viewport_size({"width": width, "height": height})
                    opened.goto(server.url)
                    opened.wait_for_selector("#visitor")
                    for place, stars in ((1, 5), (2, 4), (4, 2)):
                        opened.check(f"#best .card:nth-child({place}) input[value='{stars}']")
                    opened.focus("#best-heading")
                    opened.evaluate("scrollTo(0, 0)")
                    opened.screenshot(path=IMAGES / f"{image}.png")


if __name__ == "__main__":
    main()
