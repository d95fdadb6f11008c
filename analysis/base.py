"""Who is who in the evidence: the tables of ``sql/base.sql``, which all of judging starts from."""

from __future__ import annotations

from importlib.resources import files

from analysis.store import Evidence


def make_base(evidence: Evidence) -> None:
    """Make the tables of ``sql/base.sql``, once for each opening of the evidence."""
    if not evidence.scalar("SELECT count(*) FROM duckdb_tables() WHERE table_name = 'handled'"):
        evidence.rows((files("analysis") / "sql" / "base.sql").read_text(encoding="utf-8"))
