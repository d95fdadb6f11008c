"""How long things took and how fast they went, from raw rows.

Quantiles are exact: the nearest-rank value of the sorted raw durations, never an average of
percentiles, never a bucket. A quantile is given only when at least one value lies beyond it,
that is when ``n * (1 - q) >= 1``: 10 values for 90 %, 100 for 99 %, 1,000 for 99.9 %. Below
that the highest values say more.

========== ====================================================================
name       from, to
========== ====================================================================
end to end intended time (rate given) or sent time (rate "max"), to deleted
send       send request left, to confirmed by the queue
send lag   intended time, to send request left; only when a rate was given
delivery   confirmed by the queue, to first received; 0 when received before that
handler    event handed to the runtime, to its answer
write      a call that writes a table of role orders: sent, to answered
========== ====================================================================

What rests on something that the run could not show is left out.

At rate "max" the next send waits for an earlier one (closed loop), so end-to-end times
say nothing about what an arrival at a fixed rate would have waited.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.base import make_base
from analysis.findings import Quantiles, Timing
from analysis.schema import Observation, TableRole
from analysis.store import Evidence

NS_PER_S = 1_000_000_000
MOST_BINS = 45

# Calls that write a table of role orders.
_WRITTEN = """written AS (
    SELECT c.decision, c.sent_at, c.answered_at FROM calls c
    WHERE EXISTS (
        SELECT 1 FROM call_items t WHERE t.call_id = c.call_id
        AND t.action IN ('put', 'update', 'delete') AND list_contains($orders, t.resource)
    )
)"""

# What each name is made of: one row a duration, with split and ns. $orders is the list of tables
# of role orders, $open_loop says whether the plan gave intended times that mean something.
_DURATIONS = {
    "end to end": """
        SELECT result AS split,
            deleted_at - CASE WHEN $open_loop THEN intended_at ELSE sent_at END AS ns
        FROM histories
        WHERE sent_at IS NOT NULL AND accepted_at IS NOT NULL AND deleted_at IS NOT NULL""",
    "send lag": """
        SELECT 'all' AS split, sent_at - intended_at AS ns FROM messages
        WHERE $open_loop AND sent_at IS NOT NULL AND accepted_at IS NOT NULL""",
    "send": """
        SELECT 'all' AS split, accepted_at - sent_at AS ns FROM messages
        WHERE sent_at IS NOT NULL AND accepted_at IS NOT NULL""",
    "delivery": """
        SELECT 'all' AS split, greatest(0, received_at - accepted_at) AS ns FROM histories
        WHERE sent_at IS NOT NULL AND accepted_at IS NOT NULL AND received_at IS NOT NULL""",
    "handler": """
        WITH reported AS (
            SELECT invocation_id,
                CASE WHEN min(result) = max(result) THEN min(result) ELSE 'mixed' END AS result
            FROM (
                SELECT invocation_id, result::ENUM ('processed', 'duplicate', 'failed') AS result
                FROM results
            ) GROUP BY invocation_id
        )
        SELECT coalesce(r.result, i.outcome, 'unknown') AS split, i.ended_at - i.started_at AS ns
        FROM invocations i LEFT JOIN reported r USING (invocation_id)
        WHERE i.ended_at IS NOT NULL""",
    "write": f"""
        WITH {_WRITTEN}
        SELECT decision AS split, answered_at - sent_at AS ns
        FROM written WHERE answered_at IS NOT NULL""",
}

# What some are taken from that not every run can show.
_FROM = {
    "end to end": Observation.DELIVERIES,
    "delivery": Observation.DELIVERIES,
    "write": Observation.CALLS,
}

# Each duration has a bin, no wider than a 64th of what is in it (below zero, where only clocks that
# disagree lead, 17 ms). Counting the bins tells in which one the wanted rank is; only what is in
# those is then counted value by value. However many there are, they are never all held in memory.
_QUANTILES = """
WITH durations AS MATERIALIZED (
    SELECT split, ns::BIGINT AS ns, CASE
        WHEN ns < 0 THEN -1 - (-ns >> 24)
        WHEN ns < 1 << 16 THEN ns
        WHEN ns < 1 << 23 THEN (1 << 16) + (ns >> 10)
        WHEN ns < 1 << 30 THEN (1 << 17) + (ns >> 17)
        WHEN ns < 1::BIGINT << 37 THEN (1 << 18) + (ns >> 24)
        ELSE (1 << 19) + (ns >> 30) END AS bin
    FROM ({durations})
), binned AS MATERIALIZED (
    SELECT split, bin, count(*) AS n, min(ns) AS min_ns, max(ns) AS max_ns
    FROM durations GROUP BY split, bin
), bins AS MATERIALIZED (
    SELECT *, false AS whole FROM binned WHERE split IS NOT NULL
    UNION ALL
    SELECT 'all', bin, sum(n)::BIGINT, min(min_ns), max(max_ns), true
    FROM binned WHERE $whole GROUP BY bin
), placed AS (
    SELECT *, sum(n) OVER (PARTITION BY split ORDER BY bin) AS upto,
        sum(n) OVER (PARTITION BY split) AS total
    FROM bins
), wanted AS MATERIALIZED (
    SELECT *, greatest(1, ceil(total::BIGINT * level)) - (upto - n) AS nth
    FROM placed, (SELECT unnest($levels)::DECIMAL(12, 10) AS level)
    WHERE nth BETWEEN 1 AND n
), fine AS (
    SELECT w.split, w.bin, d.ns,
        sum(count(*)) OVER (PARTITION BY w.split, w.bin ORDER BY d.ns) AS upto
    FROM (SELECT DISTINCT split, bin, whole FROM wanted WHERE min_ns < max_ns) w
    JOIN durations d ON d.bin = w.bin AND (w.whole OR d.split = w.split)
    GROUP BY w.split, w.bin, d.ns
), found AS (
    SELECT w.split, list(coalesce(f.ns, w.min_ns) ORDER BY w.level) AS quantiles
    FROM wanted w ASOF LEFT JOIN fine f
        ON f.split = w.split AND f.bin = w.bin AND f.upto >= w.nth
    GROUP BY w.split
)
SELECT split, sum(n)::BIGINT AS n, min(min_ns) AS min_ns, max(max_ns) AS max_ns,
    any_value(quantiles) AS quantiles
FROM bins JOIN found USING (split) GROUP BY split
"""
_WITH_ALL = ("handler", "end to end")  # of others there is one split, or no "all"

_SPANS = """
WITH dead AS (
    SELECT d.message_no, min(a.acked_at) AS dead_at
    FROM deliveries d JOIN acks a USING (delivery_id)
    WHERE a.outcome = 'dead_lettered' AND d.message_no IS NOT NULL
    GROUP BY d.message_no
), settled AS (
    SELECT least(f.deleted_at, d.dead_at) AS settled_at
    FROM (FROM histories WHERE deleted_at IS NOT NULL) f FULL JOIN dead d USING (message_no)
)
SELECT (SELECT min(sent_at) FROM messages) AS first_sent,
    (SELECT max(sent_at) FROM messages) AS last_sent,
    (SELECT max(accepted_at) FROM messages) AS last_accepted,
    (SELECT count(accepted_at) FROM messages) AS accepted,
    (SELECT min(received_at) FROM deliveries WHERE queue = 'queue') AS first_received,
    (SELECT max(settled_at) FROM settled) AS last_settled,
    (SELECT count(*) FROM settled) AS settled
"""

_EVENTS = f"""
WITH {_WRITTEN}, events AS (
    SELECT 'sent' AS name, sent_at AS happened_at FROM messages WHERE accepted_at IS NOT NULL
    UNION ALL SELECT 'received', received_at FROM deliveries WHERE queue = 'queue'
    UNION ALL SELECT decision, answered_at FROM written WHERE answered_at IS NOT NULL
)
"""

_PHASES = """
WITH received AS (
    SELECT min(received_at) AS first_at, max(received_at) AS last_at FROM deliveries
    WHERE message_no IS NOT NULL GROUP BY message_no
)
SELECT (SELECT min(sent_at) FROM messages) AS first,
    (SELECT max(first_at) FROM received) AS flooded,
    greatest(
        (SELECT max(sent_at) FROM messages), (SELECT max(last_at) FROM received),
        (SELECT max(answered_at) FROM calls), (SELECT max(acked_at) FROM acks)
    ) AS last
"""

_EVENT_NAMES = ("sent", "received", "accepted", "rejected", "failed", "unknown")
_ORDER = ("end to end", "send lag", "send", "delivery", "handler", "write")
_SPLITS = ("all", "processed", "accepted", "duplicate", "rejected", "failed")


@dataclass(frozen=True, slots=True)
class Rate:
    """Events of one name in equal bins."""

    name: str  # "sent", "received", or the decision of a write
    counts: tuple[int, ...]  # one a bin


@dataclass(frozen=True, slots=True)
class Rates:
    bin_ns: int
    series: tuple[Rate, ...]


def orders_tables(evidence: Evidence) -> list[str]:
    """Names of the tables that are judged as orders."""
    return [table.name for table in evidence.run.tables if table.role is TableRole.ORDERS]


def quantiles(
    evidence: Evidence, levels: Sequence[float], names: Sequence[str] = tuple(_DURATIONS)
) -> list[dict[str, Any]]:
    """Exact quantiles of the durations of each name and split.

    Rows of name, split ("all" for all of them), n, min_ns, max_ns and quantiles, one a level.
    """
    make_base(evidence)
    found = []
    for name in names:
        if _FROM.get(name) in evidence.run.not_observable:
            continue
        durations, values = _of_name(evidence, name)
        rows = _ranked(evidence, durations, values, levels, name in _WITH_ALL)
        found += [{"name": name, **row} for row in rows]
    return found


def _ranked(
    evidence: Evidence,
    durations: str,
    values: dict[str, object],
    levels: Sequence[float],
    whole: bool,
) -> list[dict[str, Any]]:
    """Quantiles of each split, and of all durations where ``whole``."""
    return evidence.rows(
        _QUANTILES.format(durations=durations), {**values, "levels": list(levels), "whole": whole}
    )


def number_of(evidence: Evidence, name: str, split: str) -> int:
    """How many durations of a name there are in a split; "all" for all of them."""
    sql, values = _durations(evidence, name, split)
    n = evidence.scalar(f"SELECT count(*) FROM ({sql})", values)
    assert isinstance(n, int)
    return n


def values_at(
    evidence: Evidence, name: str, split: str, n: int, ranks: Collection[int | None]
) -> dict[int, int]:
    """The durations at these ranks, from 1 for the shortest of the ``n`` there are."""
    wanted = sorted({rank for rank in ranks if rank is not None})
    if not wanted:
        return {}
    sql, values = _durations(evidence, name, split)
    # The middle of a rank's share of all values: no rounding leads to a neighbour.
    levels = [(rank - 0.5) / n for rank in wanted]
    (row,) = _ranked(evidence, f"SELECT 'all' AS split, ns FROM ({sql})", values, levels, False)
    return dict(zip(wanted, row["quantiles"], strict=True))


def _durations(evidence: Evidence, name: str, split: str) -> tuple[str, dict[str, object]]:
    """SQL of the durations of a name in one split, and its values."""
    sql, values = _of_name(evidence, name)
    if split == "all":
        return sql, values
    return f"FROM ({sql}) WHERE split = $split", {**values, "split": split}


def _of_name(evidence: Evidence, name: str) -> tuple[str, dict[str, object]]:
    durations = _DURATIONS[name]
    values: dict[str, object] = {}
    if "$orders" in durations:
        values["orders"] = orders_tables(evidence)
    if "$open_loop" in durations:
        values["open_loop"] = evidence.run.plan.rate_per_s is not None
    return durations, values


def measure(evidence: Evidence) -> Timing | None:
    """The run's timing; ``None`` when nothing was sent."""
    make_base(evidence)
    (span,) = evidence.rows(_SPANS)
    first_sent = span["first_sent"]
    if first_sent is None:
        return None
    last = span["last_settled"] or span["last_accepted"] or span["last_sent"]
    rate = evidence.run.plan.rate_per_s
    rows = quantiles(evidence, (0.5, 0.9, 0.99, 0.999))
    rows.sort(key=lambda row: (_ORDER.index(row["name"]), _rank(row["split"]), row["split"]))
    return Timing(
        duration_ns=last - first_sent,
        offered_per_s=rate,
        sent_per_s=_per_s(span["accepted"], first_sent, span["last_accepted"]),
        settled_per_s=_per_s(span["settled"], span["first_received"], span["last_settled"]),
        open_loop=rate is not None,
        quantiles=tuple(_quantiles(row) for row in rows),
    )


def phases(evidence: Evidence) -> list[tuple[int, int]]:
    """The run's stretches that want a time scale of their own, as (first, last) moments.

    One, or two when redeliveries kept the run going for longer than the flood itself: the
    flood ends when every message has been received once. Empty when nothing was sent.
    """
    (span,) = evidence.rows(_PHASES)
    first, flooded, last = span["first"], span["flooded"], span["last"]
    if first is None:
        return []
    if flooded is None or (flooded - first) * 2 >= last - first:
        return [(first, last)]
    return [(first, flooded), (flooded, last)]


def rates(evidence: Evidence, first_ns: int, last_ns: int) -> Rates:
    """Sends, receives and write decisions between two moments, in bins.

    At most :data:`MOST_BINS`, each 1, 2 or 5 times a power of ten wide.
    """
    bin_ns = bin_width_ns(last_ns - first_ns)
    rows = evidence.rows(
        _EVENTS + "SELECT name, (happened_at - $first) // $bin_ns AS bin, count(*) AS n FROM events"
        " WHERE happened_at BETWEEN $first AND $last GROUP BY name, bin",
        {
            "orders": orders_tables(evidence),
            "first": first_ns,
            "last": last_ns,
            "bin_ns": bin_ns,
        },
    )
    bins = (last_ns - first_ns) // bin_ns + 1
    counts: dict[str, list[int]] = {}
    for row in rows:
        counts.setdefault(row["name"], [0] * bins)[row["bin"]] = row["n"]
    return Rates(
        bin_ns, tuple(Rate(name, tuple(counts[name])) for name in _EVENT_NAMES if name in counts)
    )


def bin_width_ns(span_ns: int) -> int:
    """The narrowest of 1, 2, 5, 10, ... ms that needs at most :data:`MOST_BINS` bins."""
    width = 1_000_000
    while True:
        for factor in (1, 2, 5):
            if span_ns < width * factor * MOST_BINS:
                return width * factor
        width *= 10


def _rank(split: str) -> int:
    return _SPLITS.index(split) if split in _SPLITS else len(_SPLITS)


def _per_s(count: int, first_ns: int | None, last_ns: int | None) -> float:
    if first_ns is None or last_ns is None or last_ns <= first_ns:
        return 0.0
    return count * NS_PER_S / (last_ns - first_ns)


def _quantiles(row: dict[str, Any]) -> Quantiles:
    n = row["n"]
    p50, p90, p99, p99_9 = row["quantiles"]
    return Quantiles(
        name=row["name"],
        split=row["split"],
        n=n,
        min_ns=row["min_ns"],
        p50_ns=p50,
        p90_ns=p90 if n >= 10 else None,
        p99_ns=p99 if n >= 100 else None,
        p99_9_ns=p99_9 if n >= 1000 else None,
        max_ns=row["max_ns"],
    )
