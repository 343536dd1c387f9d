"""`python -m coterie` is the command `coterie`."""

import sys

from coterie.cli.entry import main

if __name__ == "__main__":
    sys.exit(main())
