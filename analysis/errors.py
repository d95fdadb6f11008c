"""Every error a user can meet, in one place.

    OnceproofError
    ├── UsageError        exit 2   a flag, a configuration file or a path is wrong
    ├── TargetError       exit 4   the endpoint could not be used
    ├── HandlerError      exit 4   the handler's environment could not be used
    ├── RecordingError    exit 4   the evidence could not be written
    ├── ScratchError      exit 4   there was no room to judge it
    └── EvidenceError     exit 2   a run directory cannot be read as evidence

A message names what is wrong and what to try. Findings are not errors: they are
data, and an inconclusive run is a verdict.
"""

from __future__ import annotations

from typing import ClassVar


class OnceproofError(Exception):
    """Base of all errors that end a command with a message and an exit code."""

    exit_code: ClassVar[int] = 4


class UsageError(OnceproofError):
    """What was asked for is wrong: the message names the setting and the cure."""

    exit_code: ClassVar[int] = 2


class TargetError(OnceproofError):
    """The AWS endpoint refused, failed or answered something that is not AWS."""


class HandlerError(OnceproofError):
    """The handler could not be started, or its environment is unusable."""


class RecordingError(OnceproofError):
    """The evidence could not be written: what is not recorded cannot be judged."""


class ScratchError(OnceproofError):
    """Judging found no room for what it works out. The evidence is untouched."""


class EvidenceError(OnceproofError):
    """A run directory is missing, foreign, or too damaged to be read."""

    exit_code: ClassVar[int] = 2
