"""How fast, and in how much memory, is a run judged?

    python -m benchmarks.judge [--messages 100000 1000000] [--lost-replies 0.2]

For each number of messages: makes the evidence of a run of a correct handler straight in SQL
(five messages an order, 5 % of the orders with a conflict, poison, throttled calls, redeliveries,
dead letters, and a share of lost replies; every table, with texts as long as real ones), judges
it in a process of its own and prints rows, seconds, the process's highest memory, and seconds
by stage and by check. ``--keep DIR`` keeps the evidence there and judges it again next time.

For comparison, Elle, which checks histories of databases for the same kind of anomalies,
states 100-160 thousand operations a second at about 2.7 kB each (Kingsbury and Alvaro, "Elle:
Inferring Isolation Anomalies from Experimental Observations", VLDB 2020, and the figures in
its repository). An operation there is a transaction; here it is a message with all its rows.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import fields
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock

import duckdb
import msgspec

from analysis.schema import (
    TABLES,
    ExpectInfo,
    OrderInfo,
    PlanInfo,
    ResultInfo,
    Row,
    RunInfo,
    RunStatus,
    TableInfo,
    TableRole,
)
from analysis.store import (
    EVIDENCE_DIRECTORY,
    RUN_FILE,
    Evidence,
    open_evidence,
    parquet_options,
)
from analysis.verdict import judge

_START_NS = 1_767_225_600_000_000_000  # 2026-01-01T00:00:00Z
_COPIES = 5
_VISIBILITY_S = 30
_ELLE_OPS_PER_S = (100_000, 160_000)

# Copies of an order are sent next to each other, one message every 80 microseconds, each copy
# up to 4 ms late: they overlap. What is drawn for a row is its hash, so that the same numbers
# give the same evidence. Tables hold numbers and views make the texts of them, so that what must
# be sorted stays narrow.
_MAKE = r"""
CREATE TABLE plan_numbers AS
SELECT message_no, order_no, kind,
    CASE kind WHEN 'poison' THEN NULL WHEN 'conflict' THEN (1 + (hash(order_no) + 1) % 10)::INTEGER
        ELSE (1 + hash(order_no) % 10)::INTEGER END AS quantity,
    $start + message_no * 80_000 AS intended_at,
    hash(message_no, 'throttled') % 100 = 0 AS throttled
FROM (
    SELECT message_no, (message_no - 1) // $copies AS order_no,
        CASE WHEN message_no % 500 = 0 THEN 'poison'
            WHEN message_no % $copies = 1 THEN 'order'
            WHEN message_no % $copies = 3 AND hash(order_no) % 20 = 0 THEN 'conflict'
            ELSE 'copy' END::ENUM ('poison', 'order', 'conflict', 'copy') AS kind
    FROM range(1, $messages + 1) t(message_no)
);

CREATE MACRO key_of(kind, message_no, order_no) AS
    CASE WHEN kind = 'poison' THEN 'poison-' || message_no ELSE
        chr(65 + (order_no % 26)::INT) || substr(md5(order_no::VARCHAR), 1, 6) || '-' || order_no
        END;

CREATE VIEW plan AS
SELECT *, key_of(kind, message_no, order_no) AS order_key FROM plan_numbers;

-- The first write that is not throttled makes the order's item.
CREATE TABLE winners AS
SELECT order_no, arg_min(quantity, first_at) AS quantity, arg_min(message_no, first_at) AS winner
FROM (
    SELECT *, intended_at + CASE WHEN throttled THEN $visibility ELSE 0 END
        + (hash(message_no, 'late') % 4_000_000)::BIGINT AS first_at
    FROM plan_numbers WHERE kind <> 'poison'
) GROUP BY order_no;

CREATE TABLE arrivals AS
SELECT row_number() OVER (ORDER BY received_at, message_no) AS delivery_id, *
FROM (
    SELECT p.*, n AS receive_count, w.winner, w.quantity AS stored_quantity,
        p.kind = 'poison' OR p.quantity <> w.quantity AS refused,
        p.throttled AND n = 1 AS fails, n > $receives AS dead,
        p.intended_at + (n - 1) * $visibility
            + (hash(message_no, 'late') % 4_000_000)::BIGINT AS received_at
    FROM plan_numbers p LEFT JOIN winners w ON w.order_no = p.order_no AND p.kind <> 'poison',
        range(1, $receives + 2) t(n)
    WHERE n <= CASE WHEN p.kind = 'poison' OR p.quantity <> w.quantity THEN $receives + 1
        WHEN p.throttled THEN 2 ELSE 1 END
);

CREATE TABLE received_numbers AS
FROM arrivals LEFT JOIN (
    SELECT delivery_id, row_number() OVER (ORDER BY delivery_id) AS invocation_id
    FROM arrivals WHERE NOT dead
) USING (delivery_id);

CREATE VIEW received AS
SELECT *, '{"id":{"S":"' || order_key || '"}}' AS item_key,
    '{"id":{"S":"' || order_key || '"},"quantity":{"N":"' || stored_quantity
        || '"},"total_cents":{"N":"' || stored_quantity * 250 + 100 || '"}}' AS stored_item
FROM (SELECT *, key_of(kind, message_no, order_no) AS order_key FROM received_numbers);

-- Wire attempts. One whose reply is lost is sent again by the SDK; of half of them the store's
-- own answer did not come back either.
CREATE TABLE attempt_numbers AS
SELECT row_number() OVER (ORDER BY received_at, delivery_id, attempt) AS call_id,
    delivery_id, attempt, last_attempt
FROM (
    SELECT delivery_id, received_at, CASE WHEN NOT fails
        AND hash(delivery_id, 'lost') % 1_000_000 < $lost * 1_000_000 THEN 2 ELSE 1 END
        AS last_attempt
    FROM received_numbers WHERE NOT dead AND kind <> 'poison'
), range(1, 3) t(attempt)
WHERE attempt <= last_attempt;

CREATE VIEW attempts AS
SELECT *, received_at + 1_000_000 + (attempt - 1) * 50_000_000 AS call_sent_at,
    CASE WHEN fails THEN 'failed'
        WHEN message_no = winner AND attempt = 1 THEN 'accepted' ELSE 'rejected' END AS truth,
    attempt < last_attempt AS lost, attempt < last_attempt AND hash(message_no) % 2 = 0 AS blind
FROM attempt_numbers JOIN received USING (delivery_id);
"""

# A handler that knows its own write again: the winner says "processed" after a lost reply too.
_ANSWER = """'{"duplicate": ' || (message_no <> winner) || ', "id": "' || order_key ||
    '", "processed": ' || (message_no = winner) || ', "quantity": ' || quantity || '}'"""

_ROWS = {
    "messages": """
        SELECT message_no, order_key, kind::VARCHAR AS kind,
            '{"id": "' || order_key || '", "quantity": ' || coalesce(quantity::VARCHAR, '"many"')
                || '}' AS body,
            '{"id":{"S":"' || order_key || '"},"quantity":{"N":"' || quantity || '"}}'
                AS expected_item,
            intended_at, intended_at + 100_000 AS sent_at, intended_at + 2_000_000 AS accepted_at,
            uuid_of(message_no, 'message') AS sqs_message_id, 1 AS attempts,
            NULL::VARCHAR AS error
        FROM plan""",
    "deliveries": """
        SELECT delivery_id, CASE WHEN dead THEN 'dlq' ELSE 'queue' END AS queue,
            uuid_of(message_no, 'message') AS sqs_message_id, message_no, receive_count,
            received_at, invocation_id
        FROM received""",
    "invocations": f"""
        SELECT r.invocation_id, uuid_of(r.invocation_id, 'request') AS request_id,
            1 + r.invocation_id % 200 AS environment, r.invocation_id <= 200 AS cold,
            r.received_at + 500_000 AS started_at,
            coalesce(a.call_sent_at, r.received_at) + 3_000_000 AS ended_at,
            CASE WHEN r.refused OR r.fails THEN 'raised' ELSE 'returned' END AS outcome,
            CASE WHEN NOT r.refused AND NOT r.fails THEN {_ANSWER} END AS response,
            CASE WHEN r.refused OR r.fails THEN 'ValueError' END AS error_type,
            CASE WHEN r.refused OR r.fails THEN 'order ' || r.order_key || ' was refused' END
                AS error_message
        FROM received r LEFT JOIN (
            SELECT delivery_id, call_sent_at FROM attempts WHERE NOT lost
        ) a USING (delivery_id)
        WHERE NOT r.dead""",
    "calls": """
        SELECT call_id, invocation_id, attempt, uuid_of(delivery_id, 'sdk') AS sdk_id,
            'dynamodb' AS service, 'PutItem' AS operation, 'orders' AS resource,
            '{"TableName":"orders","Item":{"id":{"S":"' || order_key || '"},"quantity":{"N":"'
                || quantity || '"},"total_cents":{"N":"' || quantity * 250 + 100
                || '"}},"ConditionExpression":"attribute_not_exists(id)",'
                || '"ReturnValuesOnConditionCheckFailure":"ALL_OLD"}' AS request,
            call_sent_at AS sent_at,
            CASE WHEN NOT lost THEN call_sent_at + 1_500_000 END AS answered_at,
            CASE WHEN lost THEN 'unknown' ELSE truth END AS decision,
            CASE truth WHEN 'rejected' THEN 'ConditionalCheckFailedException'
                WHEN 'failed' THEN 'ProvisionedThroughputExceededException' END AS error_code,
            CASE WHEN lost THEN 'lost-reply' WHEN fails THEN 'throttle' END AS fault
        FROM attempts""",
    "call_items": """
        SELECT call_id, 'orders' AS resource, item_key, 'put' AS action,
            'attribute_not_exists(id)' AS condition,
            CASE WHEN blind THEN 'unknown' ELSE truth END AS decision,
            CASE truth WHEN 'rejected' THEN 'ConditionalCheckFailedException'
                WHEN 'failed' THEN 'ProvisionedThroughputExceededException' END AS error_code,
            CASE WHEN blind THEN NULL WHEN truth = 'rejected' THEN stored_item ELSE '{}' END
                AS before,
            CASE WHEN blind THEN NULL WHEN truth = 'failed' THEN '{}' ELSE stored_item END AS after
        FROM attempts""",
    "results": f"""
        SELECT r.invocation_id, r.message_no,
            CASE WHEN r.refused OR r.fails THEN 'failed'
                WHEN r.message_no = r.winner THEN 'processed'
                ELSE 'duplicate' END AS result,
            CASE WHEN r.refused OR r.fails THEN 'order ' || r.order_key || ' was refused'
                ELSE {_ANSWER} END AS detail
        FROM received r WHERE NOT r.dead""",
    "acks": """
        SELECT r.delivery_id,
            r.received_at + CASE WHEN a.last_attempt > 1 THEN 60_000_000 ELSE 6_000_000 END
                AS acked_at,
            CASE WHEN dead THEN 'dead_lettered' WHEN refused OR fails THEN 'returned'
                ELSE 'deleted' END AS outcome
        FROM received r LEFT JOIN (
            SELECT delivery_id, last_attempt FROM attempts WHERE NOT lost
        ) a USING (delivery_id)""",
    "items": """
        SELECT 'orders' AS resource, item_key, stored_item AS item, 'after' AS phase
        FROM received WHERE message_no = winner AND NOT fails
        UNION ALL
        SELECT 'reference', '{"id":{"S":"reference"}}',
            '{"id":{"S":"reference"},"note":{"S":"keep unchanged"}}', phase
        FROM (VALUES ('before'), ('after')) t(phase)""",
    "queue_samples": """
        SELECT intended_at AS "at", 'queue' AS queue, 5 AS visible, 8 AS in_flight, 0 AS delayed
        FROM plan WHERE message_no % 10_000 = 0""",
}


def make(directory: Path, messages: int, lost_replies: float) -> None:
    """A finished run of ``messages`` messages in ``directory``."""
    (directory / EVIDENCE_DIRECTORY).mkdir(parents=True)
    run = RunInfo(
        run_id=f"judge-{messages}",
        tool_version="benchmark",
        created_at=_START_NS,
        target="local",
        handler="app.handler",
        code="consumer",
        timeout_s=20,
        visibility_timeout_s=_VISIBILITY_S,
        max_receive_count=3,
        batch_size=1,
        report_batch_item_failures=False,
        plan=PlanInfo(1, messages // _COPIES, _COPIES, messages, None, "burst", 200),
        order=OrderInfo("id", {"id": "id", "quantity": "quantity"}),
        tables=(
            TableInfo("orders", TableRole.ORDERS, "id"),
            TableInfo("reference", TableRole.REFERENCE, "id"),
        ),
        result=ResultInfo("processed", "duplicate"),
        expect=ExpectInfo(),
        status=RunStatus.FINISHED,
        started_at=_START_NS,
        ended_at=_START_NS + messages * 80_000 + 10 * _VISIBILITY_S * 10**9,
    )
    (directory / RUN_FILE).write_bytes(msgspec.json.encode(run))
    values = {
        "messages": messages,
        "copies": _COPIES,
        "start": _START_NS,
        "visibility": _VISIBILITY_S * 10**9,
        "receives": run.max_receive_count,
        "lost": lost_replies,
    }
    scratch = directory / "scratch"
    scratch.mkdir()
    config: dict[str, str | bool | int | float | list[str]] = {
        "threads": 2,
        "memory_limit": "4GB",
        "preserve_insertion_order": False,
    }
    with duckdb.connect(str(scratch / "make.duckdb"), config=config) as connection:
        connection.execute("SET enable_progress_bar = false")
        connection.execute("""
            CREATE MACRO uuid_of(number, what) AS (
                WITH t AS (SELECT md5(what || number) AS h)
                SELECT h[:8] || '-' || h[9:12] || '-4' || h[14:16] || '-8' || h[18:20] || '-'
                    || h[21:32] FROM t
            )
        """)
        for statement in connection.extract_statements(_MAKE):
            wanted = statement.named_parameters
            connection.execute(statement, {name: values[name] for name in wanted})
        for table in TABLES:
            key = ", ".join(f'"{name}"' for name in table.KEY)
            target = directory / EVIDENCE_DIRECTORY / f"{table.TABLE}.parquet"
            query = f"FROM ({_ROWS.get(table.TABLE) or _no_rows(table)}) ORDER BY {key}"
            counted = connection.execute(f"SELECT count(*) FROM ({query})").fetchone()
            assert counted is not None
            connection.execute(f"COPY ({query}) TO '{target}' ({parquet_options(counted[0])})")
    shutil.rmtree(scratch)


def _no_rows(table: type[Row]) -> str:
    """Of a table that such a run leaves empty."""
    return f"SELECT {', '.join(f'NULL AS {field.name}' for field in fields(table))} WHERE false"


def measure(run_dir: Path) -> dict[str, Any]:
    """Judge in this process: seconds in all, by statement, and the highest memory."""
    seconds: dict[str, float] = {}  # of CPU: other work on the machine does not count
    with _timed(seconds):
        began = time.perf_counter()
        verdict = judge(run_dir)
        total_s = time.perf_counter() - began
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "verdict": verdict.verdict,
        "reasons": verdict.reasons,
        "seconds": total_s,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "peak_mb": usage.ru_maxrss / 1024,
        "by_statement": seconds,
    }


@contextmanager
def _timed(seconds: dict[str, float]) -> Iterator[None]:
    """Adds up the CPU seconds of each statement, under a name found in its text."""
    rows = Evidence.rows

    def timed(self: Evidence, sql: str, params: Any = ()) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for statement in self.connection.extract_statements(sql):
            began = time.process_time()
            found = rows(self, statement.query, params)
            name = _name(statement.query)
            seconds[name] = seconds.get(name, 0.0) + time.process_time() - began
        return found

    with mock.patch.object(Evidence, "rows", timed):
        yield


def _name(sql: str) -> str:
    made = re.search(
        r"^(?:CREATE (?:TABLE|VIEW)(?: IF NOT EXISTS)?|INSERT INTO) (\w+)", sql, re.MULTILINE
    )
    if made:
        return f"views: {made[1]}"
    line = next(line for line in sql.splitlines() if line.strip())
    checked = re.search(r"TABLE asked AS -- (.*)", sql)
    return f"check: {checked[1]}" if checked else line[:60]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--messages", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--lost-replies", type=float, default=0.0, metavar="SHARE")
    parser.add_argument("--keep", type=Path, metavar="DIR")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        print(json.dumps(measure(asked.child)))
        return
    with tempfile.TemporaryDirectory(prefix="onceproof-bench-") as temporary:
        measured = [
            _measured(asked.keep or Path(temporary), messages, asked.lost_replies)
            for messages in asked.messages
        ]
    _print(asked.messages, measured)


def _measured(parent: Path, messages: int, lost_replies: float) -> dict[str, Any]:
    run_dir = parent / f"{messages}-{lost_replies:g}"
    if not run_dir.exists():
        # In a process of its own: a child's highest memory starts with that of its parent.
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            pool.submit(make, run_dir, messages, lost_replies).result()
    argv = [sys.executable, "-m", "benchmarks.judge", "--child", str(run_dir)]
    ended = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(ended.stdout)
    with open_evidence(run_dir) as evidence:
        found["rows"] = sum(
            evidence.scalar(f"SELECT count(*) FROM {table.TABLE}") for table in TABLES
        )
    files = (run_dir / EVIDENCE_DIRECTORY).iterdir()
    found["disk_mb"] = sum(path.stat().st_size for path in files) / 1e6
    return found


def _print(sizes: list[int], measured: list[dict[str, Any]]) -> None:
    def line(name: str, values: list[str]) -> None:
        print(f"{name:64}" + "".join(f"{value:>16}" for value in values))

    def grown(values: list[float]) -> list[str]:
        """Each value, and how many times the one before it."""
        texts = [f"{values[0]:,.2f}"]
        for before, value in pairwise(values):
            texts.append(f"{value:,.2f} (x{value / before:.1f})" if before else f"{value:,.2f}")
        return texts

    line("messages", [f"{size:,}" for size in sizes])
    line("verdict", [found["verdict"] for found in measured])
    line("rows", [f"{found['rows']:,}" for found in measured])
    line("evidence, MB", [f"{found['disk_mb']:,.0f}" for found in measured])
    line("judged in, s", grown([found["seconds"] for found in measured]))
    line("CPU, s", grown([found["cpu_seconds"] for found in measured]))
    line("highest memory, MB", grown([found["peak_mb"] for found in measured]))
    speeds = [size / found["seconds"] for size, found in zip(sizes, measured, strict=True)]
    line("messages/s", [f"{speed:,.0f}" for speed in speeds])
    rows_per_s = [found["rows"] / found["seconds"] for found in measured]
    line("rows/s", [f"{speed:,.0f}" for speed in rows_per_s])
    low, high = _ELLE_OPS_PER_S
    print(f"beside it: Elle, as published, {low:,} to {high:,} operations/s at 2.7 kB each")
    print("CPU seconds by statement:")
    for name in sorted(measured[-1]["by_statement"], key=lambda name: not name.startswith("views")):
        line(f"  {name}"[:62], grown([found["by_statement"].get(name, 0.0) for found in measured]))


if __name__ == "__main__":
    main()
