"""`python -m ogradient`, and the console script: the command line, or one line that says how to get it."""

import sys

from ogradient.extras import MissingExtraError


def main() -> None:
    """Entry point of the `ogradient` command."""
    try:
        from ogradient.cli import main as run
    except MissingExtraError as error:
        sys.exit(f"ogradient: {error}")
    run()


if __name__ == "__main__":
    main()
