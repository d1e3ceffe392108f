"""Take the picture of a privacy card in publish.md, by headless Chromium.

    python docs/card_picture.py docs/images/card.png

The text of a card depends on the package's version and on the rank that the noise leaves.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from skdpmf import AdaptiveWeightALS, PrivacyBudget, PrivacyCard
from skdpmf.data import make_ratings
from tests.chromium import browser, page


def main(path):
    """Write the picture."""
    X = make_ratings(1000, 60, random_state=0)
    model = AdaptiveWeightALS(PrivacyBudget(epsilon=4.0, delta=1e-5)).fit(X)
    card = PrivacyCard.of(model, model="Films that members like, November")
    with browser() as chromium, page(chromium, 820, color_scheme="light") as opened:
        opened.set_content(card.to_html())
        part = {"x": 0, "y": 0, "width": 820, "height": 1160}
        opened.screenshot(path=path, full_page=True, clip=part)


if __name__ == "__main__":
    main(sys.argv[1])
