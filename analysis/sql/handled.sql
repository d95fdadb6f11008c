-- The rows of `handled` for the deliveries from $first to $last: the tables of a long run are
-- joined slice by slice, so that no join has to hold a whole one. They are sorted by key, so
-- each slice reads its own part of the files; $first_message and so on are the ids in the slice.
INSERT INTO handled
SELECT d.invocation_id, d.delivery_id, d.message_no, p.order_no, p.variant_no, p.poison,
    r.result, d.received_at, i.ended_at, CASE WHEN a.outcome = 'deleted' THEN a.acked_at END,
    d.receive_count = 1 AND NOT p.resent
FROM deliveries d
JOIN planned p
    ON p.message_no = d.message_no AND p.message_no BETWEEN $first_message AND $last_message
LEFT JOIN acks a USING (delivery_id)
LEFT JOIN invocations i ON i.invocation_id = d.invocation_id
    AND i.invocation_id BETWEEN $first_invocation AND $last_invocation
LEFT JOIN results r ON r.invocation_id = d.invocation_id AND r.message_no = d.message_no
    AND r.invocation_id BETWEEN $first_invocation AND $last_invocation
WHERE d.queue = 'queue' AND d.invocation_id IS NOT NULL AND d.delivery_id BETWEEN $first AND $last
