-- Which findings of one kind have the same cause? Their invocations did the same: the same
-- calls under the same conditions with the same decisions, the same report, the same
-- acknowledgement. Keys, values, times, and how the invocations interleaved are left out, so
-- that one race that hits many orders is one pattern.
--
-- `asked` holds the findings of the kind. One row a pattern, the most frequent first, with the
-- number of findings and orders, and the finding that is the smallest example: the fewest
-- replaced items, invocations and calls, then the shortest time. Hash joins and aggregates
-- over the rows of the named invocations alone.
WITH named AS (
    SELECT rowid AS finding, coalesce(order_key, '') AS order_key,
        unnest(invocation_ids) AS invocation_id,
        generate_subscripts(invocation_ids, 1) AS place
    FROM asked
), own AS MATERIALIZED (
    SELECT DISTINCT order_key, invocation_id FROM named
), others AS (
    -- Other orders of the same batch: what was done for them is left out.
    SELECT o.order_key, o.invocation_id, s.order_key AS other
    FROM own o
    JOIN (FROM handled SEMI JOIN own USING (invocation_id)) h USING (invocation_id)
    JOIN orders s USING (order_no)
    WHERE s.order_key <> o.order_key
), steps AS (
    SELECT o.order_key, o.invocation_id, c.call_id, i.resource, i.item_key, c.sent_at,
        coalesce(c.answered_at, c.sent_at) AS over_at,
        i.action <> 'read' AND i.decision = 'accepted' AND i.before <> '{}' AS replaced,
        concat(
            c.operation,
            CASE
                WHEN i.action = 'read' AND i.decision = 'accepted' AND i.before IS NOT NULL
                    THEN CASE i.before WHEN '{}' THEN ' saw nothing' ELSE ' saw an item' END
                WHEN i.action IN ('put', 'update', 'delete', 'check') THEN concat(
                    coalesce(' if ' || regexp_replace(
                        i.condition, '"(\\.|[^"\\])*"|-?\b\d[\w.+-]*', '…', 'g'
                    ), ' without a condition'), ' ', i.decision)
                ELSE ' ' || coalesce(i.decision, c.decision)
            END,
            ' (' || c.fault || ')'
        ) AS step
    FROM own o JOIN calls c USING (invocation_id) LEFT JOIN call_items i USING (call_id)
    ANTI JOIN others x ON x.order_key = o.order_key AND x.invocation_id = o.invocation_id
        AND x.other = key_text(i.resource, i.item_key)
), told AS (
    -- The same step again (a retry, a further item of one call) is not told again.
    SELECT *, step IS DISTINCT FROM lag(step) OVER (
        PARTITION BY order_key, invocation_id ORDER BY sent_at, call_id, resource, item_key
    ) AS new
    FROM steps
), called AS (
    SELECT order_key, invocation_id, count(*) AS calls, count(*) FILTER (replaced) AS replaced,
        min(sent_at) AS first_at, max(over_at) AS last_at,
        string_agg(step, ', ' ORDER BY sent_at, call_id, resource, item_key) FILTER (new) AS did
    FROM told GROUP BY order_key, invocation_id
), ended AS (
    SELECT o.order_key, o.invocation_id, string_agg(DISTINCT ending, ', ' ORDER BY ending) AS ended
    FROM (
        SELECT o.*, concat_ws(', ',
            nullif(coalesce(i.outcome, 'not ended'), 'returned'), r.result, a.outcome) AS ending
        FROM own o
        JOIN orders s USING (order_key)
        JOIN handled h ON h.invocation_id = o.invocation_id AND h.order_no = s.order_no
        LEFT JOIN invocations i ON i.invocation_id = o.invocation_id
        LEFT JOIN results r
            ON r.invocation_id = o.invocation_id AND r.message_no = h.message_no
        LEFT JOIN acks a USING (delivery_id)
    ) o GROUP BY o.order_key, o.invocation_id
), acted AS (
    SELECT o.order_key, o.invocation_id, coalesce(c.calls, 0) AS calls,
        coalesce(c.replaced, 0) AS replaced, c.first_at, c.last_at,
        concat(coalesce(c.did, 'no call'), ', ' || nullif(e.ended, '')) AS act
    FROM own o
    LEFT JOIN called c USING (order_key, invocation_id)
    LEFT JOIN ended e USING (order_key, invocation_id)
), acts AS (
    SELECT n.finding, a.act, min(n.place) AS place, count(*) AS invocations,
        sum(a.calls) AS calls, sum(a.replaced) AS replaced,
        min(a.first_at) AS first_at, max(a.last_at) AS last_at
    FROM named n JOIN acted a USING (order_key, invocation_id)
    GROUP BY n.finding, a.act
), patterns AS (
    SELECT finding, string_agg(act, ' | ' ORDER BY place) AS pattern,
        sum(invocations) AS invocations, sum(calls) AS calls, sum(replaced) AS replaced,
        max(last_at) - min(first_at) AS span
    FROM acts GROUP BY finding
)
SELECT concat_ws(': ', nullif(array_to_string(f.flags, ', '), ''),
        coalesce(p.pattern, 'no recorded invocation')) AS pattern,
    count(*) AS findings, count(DISTINCT f.order_key) AS orders,
    arg_min(f.rowid, row(coalesce(p.replaced, 0), coalesce(p.invocations, 0),
        coalesce(p.calls, 0), coalesce(p.span, 0), coalesce(f.order_key, ''), f.message_nos,
        f.call_ids, f.place)) AS example,
    count(*) OVER () AS patterns
FROM (SELECT *, rowid, hash(a) AS place FROM asked a) f
LEFT JOIN patterns p ON p.finding = f.rowid
GROUP BY ALL
ORDER BY findings DESC, pattern
