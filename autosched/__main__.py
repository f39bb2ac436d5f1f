"""`python -m autosched`: the command where its script is not on the path."""

import sys

from autosched.cli.main import main

sys.exit(main())
