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
    out = capsys.readouterr().out
    text = " ".join(out.split())
    assert "NOT MET: The number of user slots" in text
    assert "The items (columns) were read off the ratings" in text
    assert "60 users x 10 items" in out
    assert "scale 1 to 5" in out
    main(["--data", str(file), "--items", str(file.with_name("items.csv"))])
    out = capsys.readouterr().out
    text = " ".join(out.split())
    assert "NOT MET: The number of user slots" in text
    assert "The items (columns)" not in text
    assert "60 users x 11 items" in out
    assert max(map(len, out.splitlines())) <= 100


def test_a_list_measure_stands_beside_every_error(file, capsys):
    """A mean ranks nothing and has none."""
    items = file.with_name("items.csv")
    pd.DataFrame({"item": range(40), "title": "film"}).to_csv(items, index=False)
    main(["--data", str(file), "--items", str(items)])
    out = capsys.readouterr().out
    table = out[out.index("On the held-out ratings") :].splitlines()[1:7]
    assert table[0].split() == ["RMSE", "recall@20"]
    rows = {name: cells for *cells, name in (line.split(maxsplit=2) for line in table[1:])}
    assert [cells[1] == "-" for cells in rows.values()] == [True, True, False, False, False]
    assert [cells[0] == "-" for cells in rows.values()] == [False, False, True, False, False]


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
