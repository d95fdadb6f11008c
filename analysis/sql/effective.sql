-- The rows of `effective` for the calls from $first to $last, slice by slice like `handled`.
INSERT INTO effective
SELECT w.call_id, w.place_no, w.role, w.action, w.decision, c.decision, c.invocation_id,
    c.sent_at, c.answered_at, a.order_no, a.order_no IS NOT NULL AND w.poison, w.insert_only,
    w.before_known, w.after_known, w.changed, w.arrives, w.leaves, w.complete_before,
    w.complete_after, w.details_no
FROM effective_items w
JOIN calls c USING (call_id)
LEFT JOIN assigned a ON a.invocation_id = c.invocation_id AND a.order_no = w.key_no
WHERE w.call_id BETWEEN $first AND $last
