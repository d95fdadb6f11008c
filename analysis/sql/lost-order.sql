-- Every message of the order that the queue accepted was deleted as done, none is in the
-- dead-letter queue, and no item of the order was there in the end. The final items are read
-- strongly consistently after all environments have stopped.
--
-- An order whose item was written and then disappeared without a delete that explains it is
-- a vanished-order. Messages that the queue never accepted do not count.
SELECT order_key, message_nos, invocation_ids, [] AS call_ids, [] AS flags,
    len(message_nos) AS messages
FROM outcomes
WHERE settled AND NOT dead_lettered AND NOT has_item
    AND order_key NOT IN (SELECT order_key FROM vanished WHERE order_key IS NOT NULL)
