-- The object returned for a copy names another key or other details than those stored for
-- its order. Every message that says what was stored first is compared, so two copies whose
-- answers disagree with each other show too. Only the fields of the order's body count, and
-- only where they are given: times, ids and texts of the handler's own may differ.
-- Conflicting messages are judged as conflict-acknowledged.
SELECT o.order_key, [d.message_no] AS message_nos, [d.invocation_id] AS invocation_ids,
    CASE WHEN s.call_id IS NULL THEN [] ELSE [s.call_id] END AS call_ids,
    [] AS flags, d.message_no, d.result, d.fields, v.details
FROM differing d
JOIN planned p USING (message_no)
JOIN variants v USING (variant_no)
JOIN stored s ON s.order_no = v.order_no AND s.details_no = v.details_no
JOIN orders o ON o.order_no = v.order_no
