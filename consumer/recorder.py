"""Writes the evidence while a run is going: one JSON object a line, one file a table."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

import msgspec

from analysis.errors import RecordingError
from analysis.schema import TABLES, Row
from consumer.redaction import NOTHING_SECRET, Redaction


class Recorder:
    """Appends rows to ``<directory>/<table>.jsonl``.

    Each row is one unbuffered write of one complete line: whatever kills this process,
    at most the line being written is lost. Once a write has failed nothing more is
    written, so a torn line is always the last one of its file.

    :param redaction: takes out of every line what must not be kept.
    :raises RecordingError: the directory or a file in it cannot be made.
    """

    def __init__(self, directory: Path, redaction: Redaction = NOTHING_SECRET) -> None:
        self.redaction = redaction
        self.failure: RecordingError | None = None
        """Set by the first write that failed; the run must then fail too."""
        self._encoder = msgspec.json.Encoder()
        self._ids = {table: itertools.count(1) for table in TABLES}
        self._files: dict[type[Row], int] = {}
        try:
            directory.mkdir(parents=True, exist_ok=True)
            for table in TABLES:
                path = directory / f"{table.TABLE}.jsonl"
                self._files[table] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            self.close()
            raise RecordingError(
                f"the evidence cannot be kept in {directory}: {error.strerror or error}. "
                "Choose a directory that can be written to (--out)."
            ) from error

    def next_id(self, table: type[Row]) -> int:
        """The next id of that table, counted from 1."""
        return next(self._ids[table])

    def write(self, row: Row) -> None:
        """Append one row.

        :raises RecordingError: this write failed, or an earlier one did.
        """
        if self.failure is not None:
            raise self.failure
        table = type(row)
        try:
            line = self._encoder.encode(row) + b"\n"
        except UnicodeEncodeError:
            # Half a surrogate pair, from the handler's own texts: no UTF-8 file can hold it.
            text = json.dumps(msgspec.to_builtins(row), ensure_ascii=False)
            line = text.encode("utf-8", "replace") + b"\n"
        line = self.redaction(line)
        try:
            written = os.write(self._files[table], line)
            cause = None if written == len(line) else "only part of a line could be written"
        except OSError as error:
            cause = error.strerror or str(error)
        if cause is not None:
            self.failure = RecordingError(
                f"the evidence ({table.TABLE}) could not be written: {cause}. "
                "What was recorded before can still be judged. "
                "Free some space, or choose another place (--out), and run again."
            )
            raise self.failure

    def close(self) -> None:
        """Close the files; nothing can be written afterwards."""
        while self._files:
            os.close(self._files.popitem()[1])
