"""Who is who in the evidence: the tables of ``sql/base.sql``, which all of judging starts from."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files

from analysis.store import Evidence

SLICE = 1_000_000  # rows that are joined at a time

# Ids grow together, so a slice of the deliveries needs only a part of the other tables.
_OTHERS = """
SELECT min(message_no) AS first_message, max(message_no) AS last_message,
    min(invocation_id) AS first_invocation, max(invocation_id) AS last_invocation
FROM deliveries WHERE delivery_id BETWEEN $first AND $last
"""


def make_base(evidence: Evidence) -> None:
    """Make the tables of ``sql/base.sql``, once for each opening of the evidence."""
    if evidence.scalar("SELECT count(*) FROM duckdb_tables() WHERE table_name = 'handled'"):
        return
    evidence.rows(_sql("base"))
    for first, last in slices(evidence, "deliveries", "delivery_id"):
        part = {"first": first, "last": last}
        (others,) = evidence.rows(_OTHERS, part)
        evidence.rows(_sql("handled"), part | others)
    fill(evidence, "assigned", "handled", "invocation_id")
    fill(evidence, "histories", "messages", "message_no")


def fill(evidence: Evidence, name: str, table: str, key: str) -> None:
    """Run ``sql/<name>.sql`` for each slice of the table, so that no join holds a whole one."""
    for first, last in slices(evidence, table, key):
        evidence.rows(_sql(name), {"first": first, "last": last})


def slices(evidence: Evidence, table: str, key: str) -> Iterator[tuple[int, int]]:
    """The first and the last key of every million rows or so, in order."""
    rows = evidence.scalar(f"SELECT count(*) FROM {table}")
    parts = -(-rows // SLICE)
    ends = evidence.scalar(
        f"SELECT quantile_disc({key}, $shares) FROM {table}",
        {"shares": [(part + 1) / parts for part in range(parts)] or [1.0]},
    )
    first = None
    for last in ends or ():
        if first is None or last >= first:
            yield (-(2**63) if first is None else first), last
            first = last + 1


def _sql(name: str) -> str:
    return (files("analysis") / "sql" / f"{name}.sql").read_text(encoding="utf-8")
