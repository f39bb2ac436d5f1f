"""The command: `autosched`, and `python -m autosched` where its script is not on the path."""

import os
import sys


def main() -> int:
    """Runs the command. A Ctrl-C that comes while it is still being imported ends it as a later one does."""
    try:
        from autosched.cli.main import main as run

        return run()
    except KeyboardInterrupt:
        if os.environ.get("AUTOSCHED_DEBUG"):
            raise
        os.write(2, b"autosched: error: interrupted before anything began\n")
        os._exit(130)


if __name__ == "__main__":
    sys.exit(main())
