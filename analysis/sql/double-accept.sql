-- Two or more accepted writes each gave one order its result, each finding nothing (or only
-- a claim) before it. It rests on what the store returned as the old item, not on clocks.
--
-- Two items of one order count too, when different invocations inserted them: that is what
-- a sort key with a time or a random part does, and a key that is not the order's (then the
-- items are reported as wrong-key besides). Several items inserted by one invocation are one
-- work. An insert that the same invocation deleted again is undone and does not count.
-- Flag `resurrected`: an accepted delete of one of the order's items explains that it could
-- be inserted again.
SELECT i.order_key,
    list_sort(list_distinct(flatten(list(coalesce(k.message_nos, []))))) AS message_nos,
    list_sort(list(DISTINCT i.invocation_id)) AS invocation_ids,
    list_sort(list(DISTINCT i.call_id)) AS call_ids,
    CASE WHEN i.order_key IN (
        SELECT order_key FROM writes
        WHERE role = 'orders' AND action = 'delete' AND decision = 'accepted'
    ) THEN ['resurrected'] ELSE [] END AS flags,
    count(*) AS inserts, count(DISTINCT (i.resource, i.item_key)) AS items
FROM inserts i LEFT JOIN work k USING (invocation_id, order_key)
WHERE i.order_key IS NOT NULL AND NOT i.poison
GROUP BY i.order_key
HAVING count(*) > count(DISTINCT (i.resource, i.item_key))
    OR count(DISTINCT coalesce(i.invocation_id, -i.call_id)) > 1
