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
), steps AS MATERIALIZED (
    SELECT o.order_key, o.invocation_id, c.call_id, c.sent_at,
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
), coded AS MATERIALIZED (
    -- Few different steps, made many times: from here on by number.
    SELECT step, row_number() OVER (ORDER BY step)::INTEGER AS step_no FROM steps GROUP BY step
), called AS (
    SELECT order_key, invocation_id, count(*) AS calls, count(*) FILTER (replaced) AS replaced,
        min(sent_at) AS first_at, max(over_at) AS last_at,
        list(step_no ORDER BY sent_at, call_id, step_no) AS step_nos
    FROM steps JOIN coded USING (step) GROUP BY order_key, invocation_id
), ended AS (
    SELECT order_key, invocation_id,
        min(ending) || coalesce(' and ' || nullif(max(ending), min(ending)), '') AS ended
    FROM (
        SELECT o.order_key, o.invocation_id, concat_ws(', ',
            nullif(coalesce(i.outcome, 'not ended'), 'returned'), r.result, a.outcome) AS ending
        FROM own o
        JOIN orders s USING (order_key)
        JOIN handled h ON h.invocation_id = o.invocation_id AND h.order_no = s.order_no
        LEFT JOIN invocations i ON i.invocation_id = o.invocation_id
        LEFT JOIN results r
            ON r.invocation_id = o.invocation_id AND r.message_no = h.message_no
        LEFT JOIN acks a USING (delivery_id)
    ) GROUP BY order_key, invocation_id
), acted AS MATERIALIZED (
    -- The same step again (a retry, a further item of one call) is not told again.
    SELECT o.order_key, o.invocation_id, coalesce(c.calls, 0) AS calls,
        coalesce(c.replaced, 0) AS replaced, c.first_at, c.last_at, e.ended,
        list_filter(c.step_nos, lambda step_no, place:
            place = 1 OR step_no <> c.step_nos[place - 1]) AS step_nos
    FROM own o
    LEFT JOIN called c USING (order_key, invocation_id)
    LEFT JOIN ended e USING (order_key, invocation_id)
), numbered AS MATERIALIZED (
    SELECT step_nos, ended, act,
        row_number() OVER (ORDER BY act, step_nos, ended)::INTEGER AS act_no
    FROM (
        SELECT step_nos, ended, concat(coalesce((
            SELECT string_agg(c.step, ', ' ORDER BY u.place)
            FROM (SELECT unnest(step_nos) AS step_no, generate_subscripts(step_nos, 1) AS place) u
            JOIN coded c USING (step_no)
        ), 'no call'), ', ' || nullif(ended, '')) AS act
        FROM (SELECT DISTINCT step_nos, ended FROM acted)
    )
), acts AS (
    SELECT n.finding, d.act_no, min(n.place) AS place, count(*) AS invocations,
        sum(a.calls) AS calls, sum(a.replaced) AS replaced,
        min(a.first_at) AS first_at, max(a.last_at) AS last_at
    FROM named n
    JOIN acted a USING (order_key, invocation_id)
    JOIN numbered d ON d.step_nos IS NOT DISTINCT FROM a.step_nos
        AND d.ended IS NOT DISTINCT FROM a.ended
    GROUP BY n.finding, d.act_no
), sequences AS (
    SELECT finding, list(act_no ORDER BY place) AS act_nos,
        sum(invocations) AS invocations, sum(calls) AS calls, sum(replaced) AS replaced,
        max(last_at) - min(first_at) AS span
    FROM acts GROUP BY finding
), grouped AS (
    SELECT f.flags, s.act_nos,
        count(*) AS findings, count(DISTINCT f.order_key) AS orders,
        arg_min(f.rowid, row(coalesce(s.replaced, 0), coalesce(s.invocations, 0),
            coalesce(s.calls, 0), coalesce(s.span, 0), coalesce(f.order_key, ''), f.call_ids,
            f.place)) AS example
    FROM (SELECT a.rowid, order_key, flags, call_ids, hash(a) AS place FROM asked a) f
    LEFT JOIN sequences s ON s.finding = f.rowid
    GROUP BY f.flags, s.act_nos
)
SELECT concat_ws(': ', nullif(array_to_string(flags, ', '), ''), coalesce((
        SELECT string_agg(d.act, ' | ' ORDER BY list_position(act_nos, d.act_no))
        FROM numbered d WHERE list_contains(act_nos, d.act_no)
    ), 'no recorded invocation')) AS pattern,
    findings, orders, example, count(*) OVER () AS patterns
FROM grouped
ORDER BY findings DESC, pattern
