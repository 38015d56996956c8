"""`python -m graphspec`."""

import sys

from graphspec.cli import main

sys.exit(main())
