-- A valid order is in the dead-letter queue and nothing of it was stored: every message of
-- the order is settled, and at least one that is dead was refused by the handler itself,
-- in an invocation that no fault kept from its work. Receives that were spent without a run
-- are not the handler's word.
SELECT s.order_key, o.message_nos, o.invocation_ids, [] AS call_ids, [] AS flags,
    len(o.message_nos) AS messages
FROM outcomes o JOIN orders s USING (order_no)
WHERE o.settled AND o.dead_lettered
    AND o.order_no NOT IN (SELECT order_no FROM vanished WHERE order_no IS NOT NULL)
    AND o.order_no IN (
        SELECT order_no FROM fates
        WHERE fate IN ('dead_lettered', 'set_aside') AND refused
    )
