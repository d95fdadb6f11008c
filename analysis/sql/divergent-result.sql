-- The object returned for a copy names another key or other details than those stored for
-- its order. Every message that says what was stored first is compared, so two copies whose
-- answers disagree with each other show too. Only the fields of the order's body count, and
-- only where they are given: times, ids and texts of the handler's own may differ.
-- Conflicting messages are judged as conflict-acknowledged.
SELECT order_key, [message_no] AS message_nos, [invocation_id] AS invocation_ids,
    CASE WHEN call_id IS NULL THEN [] ELSE [call_id] END AS call_ids,
    [] AS flags, message_no, result, array_to_string(differing, ', ') AS fields, details
FROM (
    SELECT p.order_key, r.message_no, r.invocation_id, s.call_id, r.result, s.details,
        differing_fields(r.detail, m.expected_item) AS differing
    FROM results r
    JOIN planned p USING (message_no)
    JOIN messages m USING (message_no)
    JOIN stored s ON s.order_key = p.order_key AND s.details = p.details
    WHERE r.result IN ('processed', 'duplicate')
)
WHERE len(differing) > 0
