-- The object returned for a copy names another key or other details than those stored for
-- its order. Every message that says what was stored first is compared, so two copies whose
-- answers disagree with each other show too. Only the fields of the order's body count, and
-- only where they are given: times, ids and texts of the handler's own may differ.
-- Conflicting messages are judged as conflict-acknowledged.
SELECT o.order_key, [message_no] AS message_nos, [invocation_id] AS invocation_ids,
    CASE WHEN call_id IS NULL THEN [] ELSE [call_id] END AS call_ids,
    [] AS flags, message_no, result, array_to_string(differing, ', ') AS fields, details
FROM (
    SELECT p.order_no, r.message_no, r.invocation_id, c.call_id, r.result, c.details,
        differing_fields(r.detail, c.expected_item) AS differing
    FROM results r
    JOIN planned p USING (message_no)
    JOIN (
        SELECT v.variant_no, v.expected_item, s.details, s.call_id
        FROM variants v JOIN stored s ON s.order_no = v.order_no AND s.details = v.details
    ) c USING (variant_no)
    WHERE r.result IN ('processed', 'duplicate')
) JOIN orders o USING (order_no)
WHERE len(differing) > 0
