"""The demonstration on a file: what it says of doubtful ratings, and of what is undeclared."""

import pandas as pd
import pytest

from skdpmf.data import make_ratings, matrix_to_ratings
from skdpmf.demo import main


@pytest.fixture
def file(tmp_path):
    frame = matrix_to_ratings(make_ratings(60, 10, density=0.5, random_state=0))
    frame.to_csv(tmp_path / "ratings.csv", index=False)
    items = pd.DataFrame({"item": range(11), "title": [f"film {j}" for j in range(11)]})
    items.to_csv(tmp_path / "items.csv", index=False)
    return tmp_path / "ratings.csv"


def test_the_statement_says_what_was_read_off_the_file(file, capsys):
    main(["--data", str(file)])
    out = capsys.readouterr().out
    assert out.count("NOT MET:") == 2
    assert "60 users x 10 items" in out
    assert "scale 1 to 5" in out
    main(["--data", str(file), "--items", str(file.with_name("items.csv"))])
    out = capsys.readouterr().out
    assert out.count("NOT MET:") == 1
    assert "60 users x 11 items" in out


def test_the_scale_is_declared_and_not_read(file, capsys):
    frame = pd.read_csv(file)
    frame.assign(rating=2.0 * frame["rating"]).to_csv(file, index=False)
    with pytest.raises(SystemExit) as stop:
        main(["--data", str(file)])
    assert stop.value.code == 2
    assert "must be the scale of the ratings" in capsys.readouterr().err
    main(["--data", str(file), "--rating-range", "1", "8"])
    out = capsys.readouterr().out
    assert "scale 1 to 8" in out
    assert "note: ratings outside 1 to 8" in out
