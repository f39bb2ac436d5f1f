"""Entry point of the command: `autosched`, and `python -m autosched`."""

import os
import sys


def main() -> int:
    """Run the command. Ctrl-C during its imports ends it as a later one does."""
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
