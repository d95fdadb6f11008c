-- A message had all its receives, its visibility timeout has passed and passed once more,
-- and it was neither deleted nor moved to the dead-letter queue. Or all messages of an order
-- are settled and a claim is still one: an item that its table's `complete_when` does not
-- count as done (tables of role orders and guard). A claim whose last writer met an injected
-- fault is left behind only if the handler had a chance to take it over: an invocation of the
-- order that met no fault began after that writer had ended.
--
-- Messages that merely had not come round when the run stopped are left over, not stuck.
WITH faulted AS (
    SELECT DISTINCT invocation_id FROM calls WHERE fault IS NOT NULL AND invocation_id IS NOT NULL
), chances AS (
    SELECT order_key, max(started_at) AS last_at FROM work ANTI JOIN faulted USING (invocation_id)
    GROUP BY order_key
), claims AS (
    SELECT f.resource, f.item_key, f.order_key AS planned_key, w.order_key, w.invocation_id
    FROM finals f
    LEFT JOIN (
        SELECT t.resource, t.item_key, arg_max(t.invocation_id, t.call_id) AS invocation_id,
            arg_max(k.order_key, t.call_id) AS order_key, bool_or(o.order_key IS NULL) AS unsettled
        FROM writes t
        JOIN work k ON k.invocation_id = t.invocation_id
            AND (t.order_key IS NULL OR t.order_key = k.order_key)
        LEFT JOIN (
            SELECT order_key FROM fates GROUP BY order_key HAVING bool_and(fate <> 'open')
        ) o ON o.order_key = k.order_key
        WHERE t.decision IN ('accepted', 'unknown')
        GROUP BY t.resource, t.item_key
    ) w USING (resource, item_key)
    LEFT JOIN faulted x USING (invocation_id)
    LEFT JOIN invocations i USING (invocation_id)
    LEFT JOIN chances h ON h.order_key = w.order_key
    WHERE NOT f.complete AND f.item_before IS DISTINCT FROM f.item AND f.written
        AND NOT coalesce(w.unsettled, true)
        AND (x.invocation_id IS NULL OR coalesce(h.last_at > i.ended_at, false))
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
    FROM claims c LEFT JOIN work k USING (invocation_id, order_key)
)
SELECT order_key, message_nos,
    CASE WHEN invocation_id IS NULL THEN [] ELSE [invocation_id] END AS invocation_ids,
    [] AS call_ids, [] AS flags, what
FROM stuck
