-- A message whose details differ from those stored first for its order was deleted as done.
-- Which message of an order wins is not planned: the details stored first are the order's,
-- and any other details conflict with them, whatever the plan called the message.
--
-- The last fate of the message decides. One that the handler itself put into the dead-letter
-- queue is not acknowledged as done.
SELECT o.order_key, [f.message_no] AS message_nos,
    CASE WHEN f.last_invocation_id IS NULL THEN [] ELSE [f.last_invocation_id] END
        AS invocation_ids,
    CASE WHEN c.call_id IS NULL THEN [] ELSE [c.call_id] END AS call_ids,
    [] AS flags, f.message_no, t.details AS sent, s.details AS stored
FROM (FROM fates SEMI JOIN conflicts USING (variant_no)) f
JOIN conflicts c USING (variant_no)
JOIN orders o ON o.order_no = c.order_no
JOIN said t ON t.details_no = c.sent_no
JOIN said s ON s.details_no = c.stored_no
WHERE f.fate = 'deleted' AND NOT f.poison
