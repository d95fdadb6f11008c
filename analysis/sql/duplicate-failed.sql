-- A message with exactly the details that are stored for its order ended in the dead-letter
-- queue, and its last invocation began after those details were stored, or was shown them by
-- a read or a rejection: it had everything needed to see a harmless copy.
--
-- A copy refused while the first was still at work and acknowledged later is a retry, not a
-- finding. A message that was not refused by the handler (the last receive was never given
-- to it, only the delete failed, or a fault was injected) says nothing about the handler.
WITH shown AS (
    SELECT DISTINCT c.invocation_id, i.details FROM (
        SELECT call_id, details(before) AS details FROM call_items JOIN run_tables USING (resource)
        WHERE role = 'orders' AND (decision = 'rejected' OR action = 'read')
            AND complete(resource, before)
    ) i JOIN calls c USING (call_id)
)
SELECT f.order_key, [f.message_no] AS message_nos, [f.last_invocation_id] AS invocation_ids,
    CASE WHEN s.call_id IS NULL THEN [] ELSE [s.call_id] END AS call_ids,
    [] AS flags, f.message_no, f.receives
FROM fates f
JOIN stored s USING (order_key)
JOIN invocations i ON i.invocation_id = f.last_invocation_id
WHERE f.fate IN ('dead_lettered', 'set_aside') AND NOT f.poison AND f.details = s.details
    AND f.refused AND (i.started_at > s.stored_at
        OR (f.last_invocation_id, f.details) IN (SELECT (invocation_id, details) FROM shown))
