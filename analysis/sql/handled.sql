-- The rows of `handled` for the deliveries from $first to $last: the tables of a long run are
-- joined slice by slice, so that no join has to hold a whole one. They are sorted by key, so
-- each slice reads its own part of the files.
INSERT INTO handled
SELECT d.invocation_id, d.delivery_id, d.message_no, p.order_no, p.variant_no, p.poison,
    r.result, d.received_at, i.ended_at, CASE WHEN a.outcome = 'deleted' THEN a.acked_at END,
    d.receive_count = 1 AND NOT p.resent
FROM deliveries d
JOIN planned p USING (message_no)
LEFT JOIN acks a USING (delivery_id)
LEFT JOIN invocations i USING (invocation_id)
LEFT JOIN results r ON r.invocation_id = d.invocation_id AND r.message_no = d.message_no
WHERE d.queue = 'queue' AND d.invocation_id IS NOT NULL AND d.delivery_id BETWEEN $first AND $last
