-- A write was made, the invocation was not told (the reply was lost, or was a 5xx), it tried
-- again, and the attempt was refused because of its own first one: the item that refused it is
-- the one that the first attempt left. That alone is no mistake; taking it for somebody
-- else's work is. It shows by what came of it, and one of these must be so:
--
-- * The message failed: the handler reported it or raised, with no later call in the way that
--   did not succeed. (A killed process fails for another reason.)
-- * A side effect of the order is missing.
-- * The first attempt stored the order, which was then reported as a duplicate, and although
--   `[result]` names a field for it, nobody ever reports the order as processed: only the
--   invocation that stored it could have.
--
-- Only an invocation with one message of the order is judged: of two copies in one batch the
-- second is rightly refused. A delete that was sent again found its work done.
WITH untold AS (
    SELECT call_id, place_no, invocation_id, action FROM writes
    WHERE decision = 'accepted' AND reply <> 'accepted' AND action IN ('put', 'update')
        AND invocation_id IS NOT NULL
), again AS (
    SELECT w.call_id, u.call_id AS own_call_id, w.place_no, w.invocation_id, w.order_no
    FROM writes w JOIN untold u USING (place_no, invocation_id, action)
    WHERE w.decision = 'rejected' AND w.reply = 'rejected' AND w.call_id > u.call_id
), own AS MATERIALIZED (
    SELECT a.call_id, min(a.own_call_id) AS own_call_id, a.invocation_id,
        any_value(a.order_no) AS order_no,
        bool_or(a.own_call_id IN (SELECT call_id FROM inserts)) AS stored
    FROM again a
    JOIN images r ON r.call_id = a.call_id AND r.place_no = a.place_no
    JOIN images w ON w.call_id = a.own_call_id AND w.place_no = a.place_no
    WHERE coalesce(r.before = w.after, true)
    GROUP BY a.call_id, a.invocation_id
), single AS (
    SELECT invocation_id, order_no, any_value(message_no) AS message_no,
        any_value(result) AS result, count(*) OVER (PARTITION BY invocation_id) = 1 AS alone
    FROM handled SEMI JOIN own USING (invocation_id)
    WHERE NOT poison
    GROUP BY invocation_id, order_no HAVING count(*) = 1
), met AS MATERIALIZED (
    -- A guard's key need not tell the order.
    SELECT s.*, w.call_id, w.own_call_id, w.stored FROM own w JOIN single s
        ON s.invocation_id = w.invocation_id
        AND (s.order_no = w.order_no OR (w.order_no IS NULL AND s.alone))
), hindered AS (
    SELECT m.call_id FROM met m
    JOIN (FROM calls SEMI JOIN own USING (invocation_id)) c
        ON c.invocation_id = m.invocation_id AND c.call_id > m.call_id
    LEFT JOIN writes w ON w.call_id = c.call_id AND w.role = 'orders'
    WHERE c.decision <> 'accepted' AND c.call_id NOT IN (SELECT call_id FROM own)
        AND coalesce(w.order_no = m.order_no, true)
), found AS (
    SELECT m.*, 'message ' || m.message_no || ' failed' AS what
    FROM met m JOIN invocations i USING (invocation_id)
    WHERE m.result = 'failed' AND m.call_id NOT IN (SELECT call_id FROM hindered)
        AND (i.outcome = 'returned' OR (i.outcome = 'raised' AND m.alone))
    UNION ALL
    SELECT *, 'a side effect of the order is missing' FROM met
    WHERE order_no IN (SELECT order_no FROM missing_effects)
    UNION ALL
    SELECT *, 'nobody reported the order as processed' FROM met
    WHERE stored AND result = 'duplicate' AND (SELECT ended AND names_processed FROM facts)
        AND order_no NOT IN (
            SELECT h.order_no FROM (FROM handled SEMI JOIN met USING (order_no)) h
            WHERE h.result = 'processed'
        ) AND order_no IN (
            SELECT order_no FROM fates SEMI JOIN met USING (order_no)
            GROUP BY order_no HAVING bool_and(fate <> 'open')
        )
)
SELECT any_value(o.order_key) AS order_key, [any_value(f.message_no)] AS message_nos,
    [f.invocation_id] AS invocation_ids,
    list_sort(list(DISTINCT f.own_call_id) || list(DISTINCT f.call_id)) AS call_ids,
    [] AS flags, min(f.call_id) AS call_id, min(f.own_call_id) AS own_call_id,
    string_agg(DISTINCT f.what, ', and ' ORDER BY f.what) AS what
FROM found f JOIN orders o USING (order_no)
GROUP BY f.order_no, f.invocation_id
