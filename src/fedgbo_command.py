"""The command `fedgbo`, outside the package, which takes seconds to import: Ctrl-C in that time ends it quietly."""

import os
import signal


def main() -> None:
    """Import the command line and run it."""
    before = signal.signal(signal.SIGINT, lambda number, frame: os._exit(130))  # numpy and torch lose exceptions
    from fedgbo.cli.main import main as run

    signal.signal(signal.SIGINT, before)
    run()


if __name__ == "__main__":
    main()
