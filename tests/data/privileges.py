"""Programs without root's privilege to read and write everything, so that permissions count in tests run as root."""

import ctypes
import subprocess
import sys

PR_CAPBSET_DROP = 24
CAPABILITIES = (1, 2)  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH


def drop():
    """Take the privileges from the program that is started next; a user other than root has none of them."""
    for capability in CAPABILITIES:
        ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)


def without_privileges(program, *args):
    """Return what a Python program prints."""
    command = [sys.executable, *(["-c", program] if program else []), *map(str, args)]
    return subprocess.run(command, preexec_fn=drop, capture_output=True, text=True, check=True).stdout
