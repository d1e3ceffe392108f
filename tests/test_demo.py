"""The demonstration on a file: what it says of doubtful ratings, and of what is undeclared."""

import pandas as pd
import pytest

from skdpmf.commands.demo import main
from skdpmf.data import make_ratings
from tests.matrices import matrix_to_ratings


@pytest.fixture
def file(tmp_path):
    frame = matrix_to_ratings(make_ratings(60, 10, density=0.5, random_state=0))
    frame.to_csv(tmp_path / "ratings.csv", index=False)
    items = pd.DataFrame({"item": range(11), "title": [f"film {j}" for j in range(11)]})
    items.to_csv(tmp_path / "items.csv", index=False)
    return tmp_path / "ratings.csv"


def test_the_statement_says_what_was_read_off_the_file(file, capsys):
    main(["--data", str(file)])
    shown = capsys.readouterr()
    text = " ".join(shown.out.split())
    assert "NOT MET: The number of user slots" in text
    assert "The items (columns) were read off the ratings" in text
    assert "users x 10 items" in shown.err
    main(["--data", str(file), "--items", str(file.with_name("items.csv"))])
    shown = capsys.readouterr()
    text = " ".join(shown.out.split())
    assert "NOT MET: The number of user slots" in text
    assert "The items (columns)" not in text
    assert "users x 11 items" in shown.err
    assert "rated film " in text


def test_the_scale_is_declared_and_not_read(file, capsys):
    frame = pd.read_csv(file)
    frame.assign(rating=2.0 * frame["rating"]).to_csv(file, index=False)
    with pytest.raises(SystemExit) as stop:
        main(["--data", str(file)])
    assert stop.value.code == 1
    assert "must be the scale of the ratings" in capsys.readouterr().err
    main(["--data", str(file), "--rating-range", "1", "8"])
    assert "note: ratings outside 1 to 8" in capsys.readouterr().err
