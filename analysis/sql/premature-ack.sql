-- A message was deleted before the invocation it was given to had ended, or before an
-- accepted write of that invocation for its order was answered: had the process died in
-- between, the order would be gone. All times are from one clock of one host; equal times
-- are concurrent and not reported.
--
-- A write made outside any invocation belongs to work left running after an answer: it is
-- held against the messages of its order that were deleted before it was answered. What
-- somebody else did (the fault item-deleted) is nobody's work.
WITH settled AS MATERIALIZED (
    SELECT invocation_id, order_no, max(over_at) AS over_at, arg_max(call_id, over_at) AS call_id
    FROM writes
    WHERE role = 'orders' AND decision = 'accepted' AND answered_at IS NOT NULL
        AND call_id NOT IN (
            SELECT call_id FROM calls WHERE invocation_id IS NULL AND fault = 'item-deleted'
        )
    GROUP BY ALL
), late AS (
    SELECT * FROM settled WHERE invocation_id IS NOT NULL
    UNION ALL
    SELECT h.invocation_id, s.order_no, s.over_at, s.call_id
    FROM (FROM settled WHERE invocation_id IS NULL) s
    JOIN handled h USING (order_no)
    WHERE h.ended_at < s.over_at
), found AS (
    SELECT h.invocation_id, h.order_no, h.message_no, h.deleted_at, NULL AS call_id
    FROM handled h WHERE h.deleted_at < h.ended_at
    UNION ALL
    SELECT h.invocation_id, h.order_no, h.message_no, h.deleted_at, s.call_id
    FROM handled h
    JOIN late s ON s.invocation_id = h.invocation_id AND s.order_no = h.order_no
        AND s.over_at > h.deleted_at
    SEMI JOIN invocations i ON i.invocation_id = h.invocation_id
)
SELECT any_value(o.order_key) AS order_key,
    list_sort(list(DISTINCT f.message_no)) AS message_nos,
    [f.invocation_id] AS invocation_ids,
    CASE WHEN any_value(f.call_id) IS NULL THEN [] ELSE [any_value(f.call_id)] END AS call_ids,
    [] AS flags,
    CASE WHEN any_value(f.call_id) IS NULL THEN 'before invocation ' || f.invocation_id || ' ended'
        ELSE 'before its write, call ' || any_value(f.call_id) || ', was answered' END AS moment
FROM found f JOIN orders o USING (order_no)
GROUP BY f.order_no, f.invocation_id
