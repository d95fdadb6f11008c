"""The handler's clock, set ahead of the host's: what the fault ``clock`` needs.

Done by libfaketime (https://github.com/wolfcw/libfaketime), a library that the dynamic
linker loads before all others: it answers for ``time``, ``gettimeofday`` and
``clock_gettime`` and adds what a file says, which it reads anew at every call. So the
handler's ``time.time()`` and ``datetime.now()``, its C extensions and every program that it
starts see the same clock, and it can be moved between two invocations of one process. Its
monotonic clock is left alone: durations and timeouts stay what they are.

Not reached: clocks outside the process, such as those of the store (its time to live), of
the queue and of the files' times, and so nothing that the tester records; programs that
are linked statically or ask the kernel directly. Requests are signed with the moved clock;
the gateway signs again with the host's where the endpoint checks. What is already asleep
until a moment of the wall clock sleeps on.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path

from analysis.errors import HandlerError, UsageError

_LIBRARY = "libfaketime.so.1"


def library() -> Path:
    """The library to preload.

    :raises UsageError: it is not installed, or cannot work on this system.
    """
    if sys.platform != "linux":
        raise UsageError(
            "faults: clock works on Linux only, where a library can be loaded before the "
            "handler. Leave the rule out, or run in a Linux container."
        )
    found = importlib.util.find_spec("libfaketime")
    if found is not None and found.origin is not None:
        path = Path(found.origin).parent / "vendor" / "libfaketime" / "src" / _LIBRARY
        if path.is_file():
            return path
    raise UsageError(
        "faults: clock needs the package libfaketime, which is not installed. "
        "Install it with: pip install 'onceproof[clock]'"
    )


def preloading(library: Path, others: Mapping[str, str]) -> dict[str, str]:
    """What loads the library into a process that has these other variables.

    Names and values are those of libfaketime's README and of the package's own
    ``python-libfaketime``.
    """
    # By folder and name: LD_PRELOAD takes no path that contains a blank.
    folders = [str(library.parent), others.get("LD_LIBRARY_PATH")]
    preloaded = [_LIBRARY, others.get("LD_PRELOAD")]
    return {
        "LD_LIBRARY_PATH": ":".join(filter(None, folders)),
        "LD_PRELOAD": ":".join(filter(None, preloaded)),
        "FAKETIME_NO_CACHE": "1",
        "DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_FORCE_MONOTONIC_FIX": "0",
    }


def is_loaded(pid: int) -> bool:
    """Whether the library is in a process: the linker only warns when it is not."""
    with contextlib.suppress(OSError):
        return _LIBRARY in Path(f"/proc/{pid}/maps").read_text()
    return False


def remove_traces(pid: int) -> None:
    """Remove the shared memory of a process that was killed, and so could not itself."""
    # In this order: the library tolerates a semaphore left behind, but not memory alone.
    for name in (f"faketime_shm_{pid}", f"sem.faketime_sem_{pid}"):
        with contextlib.suppress(OSError):
            Path("/dev/shm", name).unlink()


class HandlerClock:
    """The clock of one environment.

    :param path: a file of its own, outside of the handler's folders.
    :raises UsageError: see :func:`library`.
    :raises HandlerError: the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._library = library()
        self._path = path
        self._ahead_s = 0.0
        self._write()

    def variables(self, others: Mapping[str, str]) -> dict[str, str]:
        """What to add to a process's environment that has these others."""
        return preloading(self._library, others) | {"FAKETIME_TIMESTAMP_FILE": str(self._path)}

    def check(self, pid: int) -> None:
        """Make sure that the library is in a process.

        :raises HandlerError: it is not.
        """
        if is_loaded(pid):
            return
        raise HandlerError(
            f"faults: clock has no effect, because {self._library} could not be loaded into the "
            "handler's process; it may be built for another processor. Build it here with: "
            "pip install --force-reinstall --no-binary libfaketime libfaketime"
        )

    def set_ahead(self, seconds: float) -> None:
        """Move the clock of the processes that run and of those to come.

        :raises HandlerError: the file cannot be written.
        """
        if seconds != self._ahead_s:
            self._ahead_s = seconds
            self._write()

    def remove_traces(self, pid: int) -> None:
        remove_traces(pid)

    def close(self) -> None:
        self._path.unlink(missing_ok=True)

    def _write(self) -> None:
        # Renamed into place: a reader finds the old offset or the new one, whole.
        new = self._path.with_suffix(".new")
        try:
            new.write_text(f"{self._ahead_s:+.3f}\n")
            new.replace(self._path)
        except OSError as error:
            raise HandlerError(
                f"the handler's clock could not be set in {self._path}: "
                f"{error.strerror or error}. Free some space, or choose another place (--out)."
            ) from error
