-- The handler was told, or told us, "already there" when nothing could have been there.
--
-- A write under a condition that an absent item meets (attribute_not_exists, <>, none at
-- all) was rejected although no accepted or unknown write to the same item began before the
-- rejection was answered and the item was not there before the run. Or a message was
-- reported as duplicate although no accepted or unknown write of any invocation with its
-- order began before its invocation ended. Equal times are concurrent, and an unknown write
-- may have happened, so both justify. Conditions that an absent item fails are not judged.
WITH rejected AS (
    SELECT w.order_no, w.invocation_id, w.call_id,
        'call ' || w.call_id || ' was rejected' AS what
    FROM writes w
    LEFT JOIN written c USING (place_no)
    WHERE w.decision = 'rejected' AND w.absent_meets
        AND coalesce(c.first_sent_at > w.over_at, true)
        AND w.place_no NOT IN (SELECT place_no FROM places WHERE item_before IS NOT NULL)
), suspects AS MATERIALIZED (
    -- Most had a write under their order's own key in time and need no further look.
    SELECT h.order_no, h.invocation_id, h.message_no, h.ended_at
    FROM handled h
    ANTI JOIN (
        SELECT e.partition_no, c.first_sent_at FROM written c JOIN places e USING (place_no)
    ) w ON w.partition_no = h.order_no AND w.first_sent_at <= h.ended_at
    WHERE h.result = 'duplicate' AND NOT h.poison
), order_causes AS (
    SELECT order_no, min(first_sent_at) AS first_sent_at FROM (
        SELECT order_no, sent_at AS first_sent_at FROM writes
        WHERE decision IN ('accepted', 'unknown') AND order_no IS NOT NULL
        UNION ALL
        SELECT h.order_no, w.sent_at FROM writes w JOIN handled h USING (invocation_id)
        WHERE w.decision IN ('accepted', 'unknown') AND w.order_no IS NULL
        UNION ALL
        SELECT e.partition_no, c.first_sent_at FROM written c JOIN places e USING (place_no)
    ) SEMI JOIN suspects USING (order_no) GROUP BY order_no
), reported AS (
    SELECT DISTINCT h.order_no, h.invocation_id, NULL::BIGINT AS call_id,
        'message ' || h.message_no || ' was reported as duplicate' AS what
    FROM suspects h
    LEFT JOIN order_causes c USING (order_no)
    WHERE coalesce(c.first_sent_at > h.ended_at, c.first_sent_at IS NULL)
        AND h.order_no NOT IN (
            SELECT order_no FROM finals WHERE item_before IS NOT NULL AND order_no IS NOT NULL
        )
), found AS MATERIALIZED (
    FROM rejected UNION ALL FROM reported
), given AS (
    SELECT invocation_id, order_no, list_sort(list(DISTINCT message_no)) AS message_nos
    FROM handled SEMI JOIN found USING (invocation_id, order_no) GROUP BY ALL
)
SELECT o.order_key, coalesce(g.message_nos, []) AS message_nos,
    CASE WHEN u.invocation_id IS NULL THEN [] ELSE [u.invocation_id] END AS invocation_ids,
    CASE WHEN u.call_id IS NULL THEN [] ELSE [u.call_id] END AS call_ids,
    [] AS flags, u.what
FROM found u
LEFT JOIN given g ON g.invocation_id = u.invocation_id AND g.order_no = u.order_no
LEFT JOIN orders o ON o.order_no = u.order_no
