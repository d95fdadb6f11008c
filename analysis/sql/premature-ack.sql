-- A message was deleted before the invocation it was given to had ended, or before an
-- accepted write of that invocation for its order was answered: had the process died in
-- between, the order would be gone. All times are from one clock of one host; equal times
-- are concurrent and not reported.
--
-- A write made outside any invocation belongs to work left running after an answer: it is
-- held against the messages of its order that were deleted before it was answered.
WITH deleted AS (
    SELECT h.invocation_id, h.order_key, h.message_no, a.acked_at, i.ended_at
    FROM handled h
    JOIN acks a USING (delivery_id)
    JOIN invocations i USING (invocation_id)
    WHERE a.outcome = 'deleted'
), settled AS (
    SELECT invocation_id, order_key, max(over_at) AS over_at, arg_max(call_id, over_at) AS call_id
    FROM writes
    WHERE role = 'orders' AND decision = 'accepted' AND answered_at IS NOT NULL
        AND order_key IS NOT NULL
    GROUP BY ALL
)
SELECT d.order_key, list_sort(list(DISTINCT d.message_no)) AS message_nos,
    [d.invocation_id] AS invocation_ids,
    CASE WHEN any_value(s.call_id) IS NULL THEN [] ELSE [any_value(s.call_id)] END AS call_ids,
    [] AS flags,
    min(d.acked_at) AS acked_at,
    CASE WHEN any_value(s.call_id) IS NULL THEN 'before invocation ' || d.invocation_id || ' ended'
        ELSE 'before its write, call ' || any_value(s.call_id) || ', was answered' END AS moment
FROM deleted d
LEFT JOIN (
    SELECT * FROM settled WHERE invocation_id IS NOT NULL
    UNION ALL
    SELECT w.invocation_id, s.order_key, s.over_at, s.call_id
    FROM settled s JOIN work w USING (order_key)
    WHERE s.invocation_id IS NULL AND w.ended_at < s.over_at
) s ON s.invocation_id = d.invocation_id AND s.order_key = d.order_key
    AND s.over_at > d.acked_at
WHERE d.acked_at < d.ended_at OR s.call_id IS NOT NULL
GROUP BY d.order_key, d.invocation_id
