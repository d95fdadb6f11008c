"""How much racing really took place."""

from __future__ import annotations

from analysis.findings import Exposure
from analysis.store import Evidence

# One sweep over the starts and ends of all call windows, order by order. At equal times
# starts come before ends: intervals are closed, so touching windows overlap. A call without
# an answer lasts until its invocation ended, or, if that is not known either, until it was sent.
_EXPOSURE = """
WITH windows AS (
    SELECT c.invocation_id, min(c.sent_at) AS first_at,
        max(greatest(c.sent_at, coalesce(c.answered_at, i.ended_at))) AS last_at
    FROM calls c JOIN invocations i USING (invocation_id)
    GROUP BY c.invocation_id
), intervals AS (
    SELECT DISTINCT m.order_key, w.*
    FROM deliveries d
    JOIN messages m USING (message_no)
    JOIN windows w USING (invocation_id)
    WHERE d.queue = 'queue' AND m.kind <> 'poison'
), events AS (
    SELECT order_key, first_at AS moment, 1 AS step FROM intervals
    UNION ALL SELECT order_key, last_at, -1 FROM intervals
), sweep AS (
    SELECT order_key, step, sum(step) OVER (
        PARTITION BY order_key ORDER BY moment, step DESC ROWS UNBOUNDED PRECEDING
    ) AS active
    FROM events
), orders AS (
    SELECT order_key, sum(active - 1) AS pairs, max(active) AS most
    FROM sweep WHERE step = 1 GROUP BY order_key
), contestable AS (
    SELECT m.order_key FROM messages m
    WHERE m.kind <> 'poison' AND (m.accepted_at IS NOT NULL OR m.message_no IN (
        SELECT message_no FROM deliveries
    ))
    GROUP BY m.order_key HAVING count(*) > 1
)
SELECT coalesce(sum(pairs), 0)::BIGINT AS overlapping_pairs,
    count(*) FILTER (pairs > 0) AS contended_orders,
    (SELECT count(*) FROM contestable) AS contestable_orders,
    coalesce(max(most), 0)::BIGINT AS most_in_flight,
    arg_max(order_key, (pairs, order_key)) FILTER (pairs > 0) AS busiest_order
FROM orders
"""


def measure_exposure(evidence: Evidence) -> Exposure:
    """Overlaps of the invocations of one order, poison left out.

    ``busiest_order`` is the one with the most overlapping pairs, ``None`` without any.
    """
    (row,) = evidence.rows(_EXPOSURE)
    return Exposure(**row)
