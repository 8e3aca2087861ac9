"""`python -m kvlab.bench`."""

import sys

from kvlab.bench import main

if __name__ == "__main__":
    sys.exit(main())
