"""`python -m protovalue`: what `pvn` does, for a Python whose scripts are not on the path."""

import sys

from protovalue.cli import main

if __name__ == "__main__":
    sys.exit(main())
