"""Ends the tester's children when the tester is gone, however it went.

Run as a script by :mod:`consumer.processes`; standard library only. Its standard input
is a pipe whose other end only the tester holds: ``+PGID`` and ``-PGID`` lines say which
process groups are alive. The end of input means that the tester has exited or was killed
(SIGKILL included); whatever is still registered is then killed.
"""

import contextlib
import os
import signal
import sys


def main() -> None:
    groups: set[int] = set()
    # Ctrl-C reaches the whole terminal group, and the tester still needs its children then.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for line in sys.stdin:
        group = int(line[1:])
        if line[0] == "+":
            groups.add(group)
        else:
            groups.discard(group)
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
