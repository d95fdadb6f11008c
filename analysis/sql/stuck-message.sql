-- A message had all its receives, its visibility timeout has passed and passed once more,
-- and it was neither deleted nor moved to the dead-letter queue. Or all messages of an order
-- are settled and a claim is still one: an item that its table's `complete_when` does not
-- count as done (tables of role orders and guard). A claim whose last writer met an injected
-- fault is left behind only if the handler had a chance to take it over: an invocation of the
-- order that met no fault began after that writer had ended.
--
-- A guard's key need not tell the order. It may be any one that all invocations which wrote
-- to it were given; what is said must then be true of each of them.
--
-- Messages that merely had not come round when the run stopped are left over, not stuck.
WITH claims AS (
    SELECT f.resource, f.item_key, arg_max(w.invocation_id, w.call_id) AS invocation_id
    FROM finals f JOIN writes w USING (resource, item_key)
    WHERE NOT f.complete AND f.item_before IS DISTINCT FROM f.item
        AND w.decision IN ('accepted', 'unknown')
    GROUP BY f.resource, f.item_key
), writers AS (
    SELECT DISTINCT w.resource, w.item_key, w.invocation_id, w.order_key
    FROM writes w SEMI JOIN claims USING (resource, item_key)
    WHERE w.invocation_id IS NOT NULL
), owners AS (
    SELECT w.resource, w.item_key, k.order_key FROM writers w
    JOIN work k ON k.invocation_id = w.invocation_id
        AND (w.order_key IS NULL OR w.order_key = k.order_key)
    GROUP BY ALL
    HAVING count(*) = (
        SELECT count(DISTINCT x.invocation_id) FROM writers x
        WHERE x.resource = w.resource AND x.item_key = w.item_key
    )
), faulted AS (
    SELECT DISTINCT invocation_id FROM calls WHERE fault IS NOT NULL AND invocation_id IS NOT NULL
), chances AS (
    SELECT order_key, max(started_at) AS last_at FROM work ANTI JOIN faulted USING (invocation_id)
    GROUP BY order_key
), left_claims AS (
    SELECT c.resource, c.item_key, c.invocation_id,
        CASE WHEN count(*) = 1 THEN any_value(o.order_key) END AS order_key
    FROM claims c
    JOIN owners o USING (resource, item_key)
    LEFT JOIN faulted x USING (invocation_id)
    LEFT JOIN invocations i USING (invocation_id)
    LEFT JOIN chances h USING (order_key)
    LEFT JOIN (
        SELECT order_key, bool_and(fate <> 'open') AS settled FROM fates GROUP BY order_key
    ) s USING (order_key)
    GROUP BY c.resource, c.item_key, c.invocation_id
    HAVING bool_and(coalesce(s.settled, false)
        AND (x.invocation_id IS NULL OR coalesce(h.last_at > i.ended_at, false)))
), stuck AS (
    SELECT f.order_key, [f.message_no] AS message_nos, f.last_invocation_id AS invocation_id,
        'message ' || f.message_no || ' was received ' || f.receives
            || ' times and neither deleted nor dead-lettered' AS what
    FROM fates f, facts
    WHERE f.fate = 'open' AND facts.max_receive_count > 0
        AND f.receives >= facts.max_receive_count
        AND f.received_at + 2 * facts.visibility_timeout_ns < facts.ended_at
    UNION ALL
    SELECT c.order_key, coalesce(k.message_nos, []), c.invocation_id,
        'the claim ' || c.item_key || ' in ' || c.resource || ' was left in progress'
    FROM left_claims c LEFT JOIN work k USING (invocation_id, order_key)
)
SELECT order_key, message_nos,
    CASE WHEN invocation_id IS NULL THEN [] ELSE [invocation_id] END AS invocation_ids,
    [] AS call_ids, [] AS flags, what
FROM stuck
