-- The rows of `histories` for the messages from $first to $last, slice by slice like `handled`:
-- messages are received in about the order of their numbers.
INSERT INTO histories
SELECT m.message_no, m.intended_at, m.sent_at, m.accepted_at, r.received_at, r.deleted_at,
    r.result, coalesce(r.quiet, false)
FROM messages m
LEFT JOIN (
    SELECT message_no, min(received_at) AS received_at, min(deleted_at) AS deleted_at,
        arg_min_null(result, deleted_at) FILTER (deleted_at IS NOT NULL) AS result,
        count(*) = 1 AND bool_and(at_once AND deleted_at IS NOT NULL) AS quiet
    FROM (
        SELECT message_no, received_at, deleted_at, result, at_once FROM handled
        WHERE message_no BETWEEN $first AND $last
        UNION ALL
        -- Given to no invocation, or not known to which.
        SELECT d.message_no, d.received_at,
            CASE WHEN a.outcome = 'deleted' THEN a.acked_at END, NULL, false
        FROM deliveries d LEFT JOIN acks a USING (delivery_id)
        WHERE d.queue = 'queue' AND d.invocation_id IS NULL
            AND d.message_no BETWEEN $first AND $last
    ) GROUP BY message_no
) r USING (message_no)
WHERE m.message_no BETWEEN $first AND $last
