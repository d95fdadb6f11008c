-- A message had all its receives, its visibility timeout has passed and passed once more,
-- and it was neither deleted nor moved to the dead-letter queue. Or all messages of an order
-- are settled and a claim is still one: an item that its table's `complete_when` does not
-- count as done (tables of role orders and guard). A claim that may be held by an invocation
-- that a fault struck (the last accepted writer, or any of which it is not known) is left
-- behind only if the handler had a chance to take it over: an invocation of the order that no
-- fault struck began after that one had ended.
--
-- A guard's key need not tell the order. It may be any one that all invocations which wrote
-- to it were given; what is said must then be true of each of them.
--
-- Messages that merely had not come round when the run stopped are left over, not stuck.
WITH claims AS MATERIALIZED (
    SELECT place_no, coalesce(
        arg_max(w.invocation_id, w.call_id) FILTER (w.decision = 'accepted'),
        arg_max(w.invocation_id, w.call_id)) AS invocation_id
    FROM finals f JOIN writes w USING (place_no)
    WHERE NOT f.complete AND f.item_before IS DISTINCT FROM f.item
        AND w.decision IN ('accepted', 'unknown')
    GROUP BY place_no
), writers AS (
    SELECT DISTINCT w.place_no, w.invocation_id, w.order_no
    FROM writes w SEMI JOIN claims USING (place_no)
    WHERE w.invocation_id IS NOT NULL
), owners AS MATERIALIZED (
    SELECT w.place_no, k.order_no FROM writers w
    JOIN (
        SELECT DISTINCT invocation_id, order_no FROM handled SEMI JOIN writers
            USING (invocation_id)
    ) k ON k.invocation_id = w.invocation_id AND (w.order_no IS NULL OR w.order_no = k.order_no)
    GROUP BY ALL
    HAVING count(*) = (
        SELECT count(DISTINCT x.invocation_id) FROM writers x WHERE x.place_no = w.place_no
    )
), held AS (
    SELECT c.place_no, max(coalesce(i.ended_at, 9223372036854775807)) AS ended_at
    FROM claims c
    JOIN writes w ON w.place_no = c.place_no
        AND (w.decision = 'unknown' OR w.invocation_id = c.invocation_id)
    JOIN struck x ON x.invocation_id = w.invocation_id
    JOIN invocations i ON i.invocation_id = w.invocation_id
    GROUP BY c.place_no
), chances AS (
    SELECT h.order_no, max(i.started_at) AS last_at
    FROM (FROM handled SEMI JOIN owners USING (order_no) ANTI JOIN struck USING (invocation_id)) h
    JOIN invocations i USING (invocation_id)
    GROUP BY h.order_no
), left_claims AS MATERIALIZED (
    SELECT c.place_no, c.invocation_id,
        CASE WHEN count(*) = 1 THEN any_value(o.order_no) END AS order_no
    FROM claims c
    JOIN owners o USING (place_no)
    LEFT JOIN held l USING (place_no)
    LEFT JOIN chances h USING (order_no)
    LEFT JOIN (
        SELECT order_no, bool_and(fate <> 'open') AS settled
        FROM fates SEMI JOIN owners USING (order_no) GROUP BY order_no
    ) s USING (order_no)
    GROUP BY c.place_no, c.invocation_id
    HAVING bool_and(coalesce(s.settled, false)
        AND (l.place_no IS NULL OR coalesce(h.last_at > l.ended_at, false)))
), given AS (
    SELECT invocation_id, order_no, list_sort(list(DISTINCT message_no)) AS message_nos
    FROM handled SEMI JOIN left_claims USING (invocation_id, order_no) GROUP BY ALL
), stuck AS (
    SELECT f.order_no, [f.message_no] AS message_nos, f.last_invocation_id AS invocation_id,
        'message ' || f.message_no || ' was received ' || f.receives
            || ' times and neither deleted nor dead-lettered' AS what
    FROM fates f, facts
    WHERE f.fate = 'open' AND facts.max_receive_count > 0
        AND f.receives >= facts.max_receive_count
        AND f.received_at + 2 * facts.visibility_timeout_ns < facts.ended_at
    UNION ALL
    SELECT c.order_no, coalesce(g.message_nos, []), c.invocation_id,
        'the claim ' || e.item_key || ' in ' || e.resource || ' was left in progress'
    FROM left_claims c
    JOIN places e USING (place_no)
    LEFT JOIN given g ON g.invocation_id = c.invocation_id AND g.order_no = c.order_no
)
SELECT o.order_key, s.message_nos,
    CASE WHEN s.invocation_id IS NULL THEN [] ELSE [s.invocation_id] END AS invocation_ids,
    [] AS call_ids, [] AS flags, s.what
FROM stuck s LEFT JOIN orders o USING (order_no)
