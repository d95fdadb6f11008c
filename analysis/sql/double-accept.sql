-- Two or more accepted writes each gave one order its result, each finding nothing (or only
-- a claim) before it. It rests on what the store returned as the old item, not on clocks.
--
-- Two items of one order count too, when different invocations inserted them: that is what
-- a sort key with a time or a random part does, and a key that is not the order's (then the
-- items are reported as wrong-key besides). Several items inserted by one invocation are one
-- work. An insert that the same invocation deleted again is undone and does not count.
-- Flag `resurrected`: an accepted delete of one of the order's items explains that it could
-- be inserted again. When somebody else deleted the item (the fault item-deleted), one more
-- insert is right for each time.
WITH several AS (
    SELECT order_no FROM inserts WHERE order_no IS NOT NULL AND NOT poison
    GROUP BY order_no HAVING count(*) > 1
), found AS MATERIALIZED (
    SELECT * FROM inserts SEMI JOIN several USING (order_no) WHERE NOT poison
), wiped AS (
    SELECT order_no, count(*) AS times FROM wipes WHERE complete GROUP BY order_no
), doubled AS (
    SELECT order_no, list_sort(list(DISTINCT invocation_id)) AS invocation_ids,
        list_sort(list(DISTINCT call_id)) AS call_ids,
        count(*) AS inserts, count(DISTINCT place_no) AS items
    FROM found LEFT JOIN wiped USING (order_no) GROUP BY order_no
    HAVING count(*) > count(DISTINCT place_no) + coalesce(any_value(times), 0)
        OR count(DISTINCT coalesce(invocation_id, -call_id)) > 1 + coalesce(any_value(times), 0)
)
SELECT o.order_key,
    coalesce((
        SELECT list_sort(list(DISTINCT h.message_no)) FROM handled h
        SEMI JOIN found f ON f.invocation_id = h.invocation_id AND f.order_no = h.order_no
        WHERE h.order_no = d.order_no
    ), []) AS message_nos,
    d.invocation_ids, d.call_ids,
    CASE WHEN d.order_no IN (
        SELECT order_no FROM writes
        WHERE role = 'orders' AND action = 'delete' AND decision = 'accepted'
            AND call_id NOT IN (SELECT call_id FROM wipes)
    ) THEN ['resurrected'] ELSE [] END AS flags,
    d.inserts, d.items
FROM doubled d JOIN orders o USING (order_no)
