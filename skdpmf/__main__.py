"""`python -m skdpmf`: the command line, `skdpmf.cli`."""

import sys

from skdpmf.cli import main

if __name__ == "__main__":
    sys.exit(main())
