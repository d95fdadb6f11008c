"""onceproof: load and race-condition tester for idempotent queue consumers."""

__version__ = "0.1.0"
