"""How much racing really took place, and which faults."""

from __future__ import annotations

from analysis.base import make_base, slices
from analysis.faults import count_faults
from analysis.findings import Exposure
from analysis.schema import Observation
from analysis.store import Evidence

# From the first call of an invocation to the end of its last one, for each of its orders; poison
# left out. A call without an answer lasts until its invocation ended, or, if that is not known
# either, until it was sent. Filled slice by slice, so that no join has to hold all the calls.
_MAKE_INTERVALS = "CREATE TABLE intervals (order_no INTEGER, first_at BIGINT, last_at BIGINT)"
_INTERVALS = """
INSERT INTO intervals
WITH stretches AS (
    SELECT invocation_id, sent_at AS first_at, greatest(sent_at, answered_at) AS last_at
    FROM calls WHERE answered_at IS NOT NULL AND invocation_id BETWEEN $first AND $last
    UNION ALL
    SELECT c.invocation_id, c.sent_at, greatest(c.sent_at, i.ended_at)
    FROM calls c JOIN invocations i USING (invocation_id)
    WHERE c.answered_at IS NULL AND c.invocation_id BETWEEN $first AND $last
), windows AS (
    SELECT invocation_id, min(first_at) AS first_at, max(last_at) AS last_at
    FROM stretches GROUP BY invocation_id
)
SELECT a.order_no, w.first_at, w.last_at
FROM assigned a JOIN windows w USING (invocation_id)
WHERE NOT a.poison AND a.invocation_id BETWEEN $first AND $last
"""

# Where calls are not observable: from the start of an invocation to its end. An invocation that
# merely ran at the same time then counts as well.
_WHOLE_INTERVALS = """
INSERT INTO intervals
SELECT a.order_no, i.started_at, i.ended_at
FROM assigned a JOIN invocations i USING (invocation_id)
WHERE NOT a.poison AND i.ended_at IS NOT NULL AND a.invocation_id BETWEEN $first AND $last
"""

# One sweep over the starts and ends of all intervals, order by order. At equal times starts
# come before ends: intervals are closed, so those that touch overlap.
#
# One row per order, poison left out; `contestable`: two or more of its messages were accepted
# by the queue, or received from it.
_OVERLAPS = """
CREATE TABLE order_overlaps AS
WITH events AS (
    SELECT order_no, first_at AS moment, 1 AS step FROM intervals
    UNION ALL SELECT order_no, last_at, -1 FROM intervals
), sweep AS (
    SELECT order_no, step, sum(step) OVER (
        PARTITION BY order_no ORDER BY moment, step DESC ROWS UNBOUNDED PRECEDING
    ) AS active
    FROM events
), swept AS (
    SELECT order_no, sum(active - 1)::BIGINT AS pairs, max(active)::BIGINT AS most
    FROM sweep WHERE step = 1 GROUP BY order_no
), received AS (
    SELECT DISTINCT message_no FROM deliveries
    SEMI JOIN (FROM planned WHERE NOT accepted) USING (message_no)
), sent AS (
    SELECT p.order_no, count(*) AS messages,
        count(*) FILTER (p.accepted OR r.message_no IS NOT NULL) > 1 AS contestable
    FROM planned p LEFT JOIN received r USING (message_no)
    WHERE NOT p.poison GROUP BY p.order_no
)
SELECT o.order_no, o.messages, o.contestable, coalesce(s.pairs, 0) AS pairs,
    coalesce(s.most, 0) AS most
FROM sent o LEFT JOIN swept s USING (order_no)
"""

_EXPOSURE = """
SELECT coalesce(sum(pairs), 0)::BIGINT AS overlapping_pairs,
    count(*) FILTER (pairs > 0) AS contended_orders,
    count(*) FILTER (contestable) AS contestable_orders,
    coalesce(max(most), 0)::BIGINT AS most_in_flight
FROM order_overlaps
"""


def make_overlaps(evidence: Evidence) -> None:
    """Make the table ``order_overlaps``, once for each opening of the evidence.

    One row per order: order_no, messages, contestable, overlapping pairs, and the most
    invocations with calls open at one time.
    """
    if not evidence.scalar(
        "SELECT count(*) FROM duckdb_tables() WHERE table_name = 'order_overlaps'"
    ):
        make_base(evidence)
        evidence.rows(_MAKE_INTERVALS)
        by_call = Observation.CALLS not in evidence.run.not_observable
        intervals = _INTERVALS if by_call else _WHOLE_INTERVALS
        for first, last in slices(evidence, "assigned", "invocation_id"):
            evidence.rows(intervals, {"first": first, "last": last})
        evidence.rows(_OVERLAPS)
        evidence.rows("DROP TABLE intervals")


def measure_exposure(evidence: Evidence) -> Exposure:
    """Overlaps of the invocations of one order, poison left out.

    ``busiest_order`` is the one with the most overlapping pairs, ``None`` without any.
    """
    make_overlaps(evidence)
    (row,) = evidence.rows(_EXPOSURE)
    busiest = most_contended(evidence, 1)
    return Exposure(
        **row,
        busiest_order=busiest[0] if busiest else None,
        faults=count_faults(evidence),
    )


def most_contended(evidence: Evidence, n: int) -> list[str]:
    """The keys of the ``n`` orders with most overlapping pairs; ties by key, last one first."""
    make_overlaps(evidence)
    rows = evidence.rows(
        "SELECT order_key FROM order_overlaps JOIN orders USING (order_no) WHERE pairs > 0"
        " ORDER BY pairs DESC, order_key DESC LIMIT $n",
        {"n": n},
    )
    return [row["order_key"] for row in rows]


def overlap_counts(evidence: Evidence) -> dict[int, int]:
    """How many orders of two or more messages had 0, 1, 2, ... overlapping pairs."""
    return _counts(evidence, "pairs")


def in_flight_counts(evidence: Evidence) -> dict[int, int]:
    """How many orders of two or more messages had at most 0, 1, ... call windows open at once."""
    return _counts(evidence, "most")


def _counts(evidence: Evidence, column: str) -> dict[int, int]:
    make_overlaps(evidence)
    rows = evidence.rows(
        f"SELECT {column} AS n, count(*) AS orders FROM order_overlaps"
        " WHERE messages > 1 OR pairs > 0 GROUP BY n ORDER BY n"
    )
    return {row["n"]: row["orders"] for row in rows}
