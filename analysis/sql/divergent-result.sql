-- The object returned for a copy names another key or other details than those stored for
-- its order. Every message that says what was stored first is compared, so two copies whose
-- answers disagree with each other show too. Only the fields of the order's body count, and
-- only where they are given: times, ids and texts of the handler's own may differ.
-- Conflicting messages are judged as conflict-acknowledged.
--
-- The same answer to copies of one order is read once.
WITH answers AS (
    SELECT p.variant_no, r.detail FROM results r JOIN planned p USING (message_no)
    WHERE r.result IN ('processed', 'duplicate') GROUP BY ALL
), differing AS MATERIALIZED (
    SELECT a.variant_no, a.detail, s.call_id, s.details,
        differing_fields(a.detail, v.expected_item) AS fields
    FROM answers a
    JOIN variants v USING (variant_no)
    JOIN stored s ON s.order_no = v.order_no AND s.details = v.details
    WHERE len(fields) > 0
)
SELECT o.order_key, [r.message_no] AS message_nos, [r.invocation_id] AS invocation_ids,
    CASE WHEN d.call_id IS NULL THEN [] ELSE [d.call_id] END AS call_ids,
    [] AS flags, r.message_no, r.result, array_to_string(d.fields, ', ') AS fields, d.details
FROM differing d
JOIN planned p USING (variant_no)
JOIN results r ON r.message_no = p.message_no AND r.detail = d.detail
JOIN orders o USING (order_no)
WHERE r.result IN ('processed', 'duplicate')
