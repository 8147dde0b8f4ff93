"""The command `fedgbo`, outside the package, which takes seconds to import: Ctrl-C in that time ends it quietly."""

import sys


def main() -> None:
    """Import the command line and run it."""
    try:
        from fedgbo.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
