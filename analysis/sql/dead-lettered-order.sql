-- A valid order is in the dead-letter queue and nothing of it was stored: every message of
-- the order is settled, and at least one that is dead was refused by the handler itself,
-- in an invocation that met no injected fault.
SELECT o.order_key, o.message_nos, o.invocation_ids, [] AS call_ids, [] AS flags,
    len(o.message_nos) AS messages
FROM outcomes o
WHERE o.settled AND o.dead_lettered AND NOT o.has_item
    AND o.order_key NOT IN (SELECT order_key FROM vanished WHERE order_key IS NOT NULL)
    AND o.order_key IN (
        SELECT order_key FROM fates
        WHERE fate IN ('dead_lettered', 'set_aside') AND refused
    )
