"""`python -m fedgbo` is the command `fedgbo`."""

from fedgbo.cli.main import main

main()
