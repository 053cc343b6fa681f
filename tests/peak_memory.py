"""Peak memory of a piece of code, in a process of its own."""

import subprocess
import sys

# VmHWM starts anew with the process; ru_maxrss would begin with what the parent had when it forked.
PEAK = """
def peak():
    with open("/proc/self/status") as status:
        return int(next(line for line in status if line.startswith("VmHWM")).split()[1]) / 2**20
"""


def printed_by(code):
    """What the code prints, as a number; it can call `peak()` for its peak memory in GiB."""
    result = subprocess.run([sys.executable, "-c", PEAK + code], capture_output=True, text=True, check=True)
    return float(result.stdout)
