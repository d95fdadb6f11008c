-- A declared side effect happened more often than it is owed: once for an order that was
-- stored. What counts is what the other service did, not what the handler learned of it: an
-- SDK that sends an effect again because a reply was lost has made it twice.
--
-- For an order that somebody else deleted (the fault item-deleted) one more is right for each
-- time, as its item may have been all that told the handler of the first.
--
-- None is owed for poison and for orders that were never stored (flag `unstored`: nothing was
-- inserted, nothing is there, no write is unknown). That is said when all messages of the
-- order are settled and the handler had the last word on one of them: it was deleted as done,
-- or refused. What a fault brought into the dead-letter queue may be stored yet.
WITH counted AS (
    SELECT order_no, effect, count(*) AS times,
        list_sort(list(DISTINCT call_id)) AS call_ids,
        list_sort(list(DISTINCT invocation_id) FILTER (invocation_id IS NOT NULL))
            AS invocation_ids
    FROM effected WHERE decision = 'accepted' AND order_no IS NOT NULL GROUP BY ALL
), allowed AS (
    SELECT order_no, 1 + count(*) AS times FROM wipes
    WHERE order_no IS NOT NULL GROUP BY order_no
), kept AS (
    SELECT order_no FROM writes
    WHERE role = 'orders' AND order_no IS NOT NULL AND NOT coalesce(poison, false)
        AND (decision = 'unknown' OR (decision = 'accepted' AND complete_after))
    UNION SELECT order_no FROM inserts WHERE NOT coalesce(poison, false)
    UNION SELECT order_no FROM finals WHERE role = 'orders' AND NOT poison
), unstored AS (
    SELECT order_no FROM (FROM fates SEMI JOIN counted USING (order_no)) f
    ANTI JOIN kept USING (order_no)
    WHERE (SELECT ended FROM facts)
    GROUP BY order_no
    HAVING bool_and(fate <> 'open') AND bool_or(fate = 'deleted' OR refused)
)
SELECT o.order_key,
    coalesce((
        SELECT list_sort(list(DISTINCT h.message_no)) FROM handled h
        WHERE h.order_no = c.order_no AND list_contains(c.invocation_ids, h.invocation_id)
    ), []) AS message_nos,
    c.invocation_ids, c.call_ids,
    CASE WHEN u.order_no IS NOT NULL THEN ['unstored'] ELSE [] END AS flags,
    e.name AS effect,
    CASE WHEN c.times = 1 THEN 'once' ELSE c.times || ' times' END || CASE
        WHEN u.order_no IS NOT NULL THEN ', and the order was never stored' ELSE '' END AS times
FROM counted c
JOIN run_effects e USING (effect)
JOIN orders o USING (order_no)
LEFT JOIN allowed a USING (order_no)
LEFT JOIN unstored u USING (order_no)
WHERE u.order_no IS NOT NULL OR c.times > coalesce(a.times, 1)
