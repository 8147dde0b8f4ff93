"""`python -m fedgbo` is the command `fedgbo`."""

import signal

from fedgbo.cli.main import main

if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # set by fedgbo/__init__.py for the time of the imports
    signal.signal(signal.SIGINT, signal.default_int_handler)
main()
