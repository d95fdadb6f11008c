"""Where judging keeps what it works out: a DuckDB database on disk, gone when it is closed.

Tables in a file are compressed and leave memory when room is needed, so that judging needs no
more memory than its limit, however long the run was. Nothing in it must outlive the process:
it writes no log ahead, and what a killed process left behind is removed by the next one.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import duckdb

from analysis.errors import ScratchError

try:
    import fcntl
except ImportError:  # not on Windows: there a killed process leaves its directory behind
    fcntl = None  # type: ignore[assignment]

THREADS = 2
MOST_MEMORY = 1_500_000_000  # bytes; less where that is more than half of the machine's
PREFIX = ".onceproof-"
_LOCK = "lock"
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}

# What DuckDB says when a write finds no room: on the device, in the process's own limit, in the
# limit for what is moved out of memory.
_NO_ROOM = ("No space left", "File too large", "Disk quota", "max_temp_directory_size")


@contextmanager
def scratch_database(run_dir: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """An empty database beside the run, or in the system's place for temporary files where
    the run's directory cannot be written.

    :raises ScratchError: there is no room, neither in memory nor on disk.
    """
    with _directory(run_dir) as directory:
        config: dict[str, str | bool | int | float | list[str]] = {
            "threads": THREADS,
            "temp_directory": str(directory),
            "autoinstall_known_extensions": False,
        }
        with duckdb.connect(":memory:", config=config) as connection:
            connection.execute(f"SET memory_limit = '{_memory_limit(connection)}B'")
            path = str(directory / "judge.duckdb").replace("'", "''")
            try:
                connection.execute(f"ATTACH '{path}' AS judge (RECOVERY_MODE no_wal_writes)")
                connection.execute("USE judge")
                yield connection
            except duckdb.Error as error:
                if lacks_room(error):
                    raise no_room(error, directory) from error
                raise


def lacks_room(error: Exception) -> bool:
    """Whether a statement failed for want of memory or disk, and not for what it read."""
    return isinstance(error, duckdb.OutOfMemoryException) or any(
        words in str(error) for words in _NO_ROOM
    )


def no_room(error: Exception, directory: Path) -> ScratchError:
    """The error that names cause and cure."""
    first_line = (str(error).splitlines() or [type(error).__name__])[0]
    return ScratchError(
        f"{directory}: no room to work in ({first_line}). The evidence is untouched and can be "
        "judged again. Free some space there, or some memory: judging needs on disk about what "
        "the evidence takes, and 200 MB of memory."
    )


def _memory_limit(connection: duckdb.DuckDBPyConnection) -> int:
    connection.execute("SET memory_limit = '50%'")  # of the machine, or of the container's share
    row = connection.execute("SELECT current_setting('memory_limit')").fetchone()
    assert row is not None
    size, unit = row[0].split()
    return min(MOST_MEMORY, int(float(size) * _UNITS[unit]))


@contextmanager
def _directory(run_dir: Path) -> Iterator[Path]:
    try:
        path = tempfile.mkdtemp(prefix=PREFIX, dir=run_dir)
    except OSError:
        path = tempfile.mkdtemp(prefix=PREFIX)
    directory = Path(path)
    try:
        with (directory / "new").open("w") as lock:
            if fcntl is not None:
                fcntl.flock(lock, fcntl.LOCK_EX)
                _sweep(directory.parent)
            (directory / "new").rename(directory / _LOCK)  # never seen unlocked
            yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _sweep(parent: Path) -> None:
    """Remove what killed processes left: their locks are free."""
    for left in parent.glob(f"{PREFIX}*"):
        with suppress(OSError), (left / _LOCK).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises while its owner is at work
            shutil.rmtree(left, ignore_errors=True)
