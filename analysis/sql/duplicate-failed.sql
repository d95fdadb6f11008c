-- A message with exactly the details that are stored for its order ended in the dead-letter
-- queue, and its last invocation began after those details were stored, or was shown them by
-- a read or a rejection: it had everything needed to see a harmless copy.
--
-- A copy refused while the first was still at work and acknowledged later is a retry, not a
-- finding. A message that was not refused by the handler (the last receive was never given
-- to it, only the delete failed, or a fault struck it) says nothing about the handler; nor
-- does one whose order somebody else had deleted.
WITH refused AS MATERIALIZED (
    SELECT f.*, v.details, s.call_id, i.started_at > s.stored_at AS later
    FROM fates f
    JOIN invocations i ON i.invocation_id = f.last_invocation_id
    JOIN variants v USING (variant_no)
    JOIN stored s ON s.order_no = f.order_no AND s.details_no = v.details_no
    WHERE f.fate IN ('dead_lettered', 'set_aside') AND NOT f.poison AND f.refused
        AND f.order_no NOT IN (SELECT order_no FROM wipes WHERE order_no IS NOT NULL)
), called AS MATERIALIZED (
    SELECT call_id, invocation_id FROM calls JOIN (
        SELECT DISTINCT last_invocation_id AS invocation_id FROM refused WHERE NOT later
    ) r USING (invocation_id)
), shown AS (
    SELECT DISTINCT c.invocation_id, details(i.before) AS details
    FROM call_items i JOIN called c USING (call_id)
    JOIN run_tables t USING (resource)
    WHERE t.role = 'orders' AND (i.decision = 'rejected' OR i.action = 'read')
)
SELECT o.order_key, [f.message_no] AS message_nos, [f.last_invocation_id] AS invocation_ids,
    CASE WHEN f.call_id IS NULL THEN [] ELSE [f.call_id] END AS call_ids,
    [] AS flags, f.message_no, f.receives
FROM refused f
JOIN orders o USING (order_no)
WHERE f.later
    OR (f.last_invocation_id, f.details) IN (SELECT (invocation_id, details) FROM shown)
