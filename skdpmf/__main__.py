"""`python -m skdpmf`: the command line, `skdpmf.commands.cli`."""

import sys

from skdpmf.commands.cli import main

if __name__ == "__main__":
    sys.exit(main())
