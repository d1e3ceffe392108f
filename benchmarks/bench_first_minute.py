"""Processor seconds of a newcomer's first steps, each in a new process, beside imports alone.

Nothing is compiled before a row's first column: its cache of kernels is an empty folder. The second
column finds there what the first has compiled. The third is the import of libraries that the row
stands beside, by turns with it. All are medians, and bytecode is kept, as it is for everybody.

    python benchmarks/bench_first_minute.py

The rows are the example of the README, from import to list; the same with 1,000,000 made-up
ratings of 6,040 x 3,706; an answer from a saved model; and the commands.
"""

import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from harness import parser, print_head, print_row

PARSER = parser(__doc__, repeats=3, parts=["first", "million", "serving"])
README = Path(__file__).resolve().parents[1] / "README.md"
LIBRARIES = "import sklearn, pandas, numba"
SERVING = "import sklearn.base, pandas"
READING = "import numpy, scipy.sparse, pandas"
MILLION = "make_ratings(6040, 3706, n_ratings=1_000_000, random_state=0, as_frame=True)"
RATINGS = "user,item,rating\nu1,m3,5\nu1,m17,4\n"
ANSWER = """
from skdpmf import load_model
print(load_model("model.skdpmf").recommend({"m3": 5.0}, n=3))
"""
COMMANDS = {
    "--help": READING,
    "ledger people.ledger": READING,
    "show model.skdpmf": READING,
    "plan --items 1000 --epsilon 1": READING,
    "recommend model.skdpmf ratings.csv --user u1": SERVING,
}


def example():
    """Return the README's first model."""
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    return next(block for block in blocks if ".recommend(" in block)


def run(program, folder, cache):
    """Run a program, or words after `skdpmf`; return its processor seconds and what it prints."""
    words = ["-m", "skdpmf", *program] if isinstance(program, list) else ["-c", program]
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache), "PYTHONDONTWRITEBYTECODE": ""}
    before = os.times()
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *words],
        cwd=folder,
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    after = os.times()
    return sum(after[2:4]) - sum(before[2:4]), done.stdout


def row(name, program, base, folder, repeats):
    """Print the row of one program."""
    times = []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as cache:
            once = [run(program, folder, cache)[0] for _ in range(2)]
        times.append([*once, run(base, folder, folder)[0]])
    cold, warm, alone = map(statistics.median, zip(*times, strict=True))
    print_row(name, *(f"{t:.2f}" for t in (cold, warm, alone)), f"{cold / alone:.2f}")


def main(arguments=None):
    options = PARSER.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "ratings.csv").write_text(RATINGS, encoding="utf-8")
        save = "\nmodel.save('model.skdpmf')\n"
        save += "from skdpmf import PrivacyLedger\n"
        save += "PrivacyLedger('people.ledger', PrivacyBudget(8.0, 1e-5)).report()\n"
        run(example() + save, folder, folder)  # and keeps all bytecode
        print_head("processor seconds", "nothing compiled", "again", "imports alone", "ratio")
        given = folder, options.repeats
        if "first" in options.parts:
            row("the README's example", example(), LIBRARIES, *given)
        if "million" in options.parts:
            large = re.sub(r"make_ratings\(.*?as_frame=True\)", MILLION, example())
            row("the same with 1,000,000 ratings", large, LIBRARIES, *given)
        if "serving" in options.parts:
            row("an answer from a saved model", ANSWER, SERVING, *given)
            for words, base in COMMANDS.items():
                row(f"`skdpmf {words}`", words.split(), base, *given)


if __name__ == "__main__":
    main()
