-- Every message of the order that the queue accepted was deleted as done, none is in the
-- dead-letter queue, and no item of the order was there in the end. The final items are read
-- strongly consistently after all environments have stopped.
--
-- An order whose item was written and then disappeared without a delete that explains it is
-- a vanished-order. Messages that the queue never accepted do not count.
SELECT s.order_key, o.message_nos, o.invocation_ids, [] AS call_ids, [] AS flags,
    len(o.message_nos) AS messages
FROM outcomes o JOIN orders s USING (order_no)
WHERE o.settled AND NOT o.dead_lettered
    AND o.order_no NOT IN (SELECT order_no FROM vanished WHERE order_no IS NOT NULL)
