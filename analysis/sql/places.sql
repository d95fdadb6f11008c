-- Where things are: every item, and every write to one.

-- Places: where items are or were, by primary key, with what stood there before and after the
-- run (NULL: nothing, or not read). `partition_no` and `sort_no`: the order whose key it bears;
-- `poison`: that order is.
CREATE TABLE places AS
SELECT (row_number() OVER ())::INTEGER AS place_no, e.*, t.role,
    p.order_no AS partition_no, s.order_no AS sort_no,
    coalesce(p.poison, s.poison, false) AS poison
FROM (
    SELECT resource, item_key, max(item) FILTER (phase = 'before') AS item_before,
        max(item) FILTER (phase = 'after') AS item_after
    FROM (
        SELECT resource, item_key, NULL AS item, NULL AS phase FROM call_items
        WHERE action IN ('put', 'update', 'delete')
        UNION ALL SELECT resource, item_key, item, phase FROM items
    ) GROUP BY resource, item_key
) e
JOIN run_tables t USING (resource)
LEFT JOIN orders p ON p.order_key = key_text(e.resource, e.item_key)
LEFT JOIN orders s ON s.order_key = sort_text(e.resource, e.item_key);

-- Every write that a call asked for, where, and what its images show; the images themselves,
-- which are long, are left behind.
--
-- An accepted write under the condition that the item's key does not exist had no item
-- before it, whether or not the store returned the old one. `arrives` and `leaves`: the image
-- after or before it is the one found at the end. `key_no`: the order that the key is.
-- `details_after`: what an accepted write left, as a text.
CREATE VIEW item_writes AS
SELECT * EXCLUDE (resource, before, after, item_after),
    after IS NOT NULL AS after_known,
    after IS DISTINCT FROM CASE WHEN before_known THEN coalesce(before, '{}') END AS changed,
    after = coalesce(item_after, '{}') AS arrives,
    CASE WHEN before_known THEN coalesce(before, '{}') = coalesce(item_after, '{}') END AS leaves,
    complete(resource, before) AS complete_before, complete(resource, after) AS complete_after,
    CASE WHEN decision = 'accepted' THEN details(after) END AS details_after
FROM (
    SELECT *, before IS NOT NULL OR (decision = 'accepted' AND insert_only) AS before_known FROM (
        SELECT i.call_id, e.place_no, e.resource, e.poison, i.absent_meets,
            CASE WHEN e.role = 'orders' AND e.sort_no IS NULL THEN e.partition_no END AS key_no,
            e.role::ENUM ('orders', 'guard', 'reference') AS role,
            i.action::ENUM ('put', 'update', 'delete') AS action,
            i.decision::ENUM ('accepted', 'unknown', 'rejected', 'failed') AS decision,
            CASE WHEN i.condition = 'attribute_not_exists(' || t."key" || ')' THEN true
                WHEN contains(
                    replace(i.condition, ' ', ''), 'attribute_not_exists(' || t."key" || ')'
                ) THEN NOT regexp_matches(i.condition, '(?i)\b(OR|NOT)\b')
                ELSE false END AS insert_only,
            i.before, i.after, e.item_after
        FROM (
            SELECT *, condition IS NULL OR contains(condition, 'attribute_not_exists')
                OR contains(condition, '<>') AS absent_meets
            FROM call_items WHERE action IN ('put', 'update', 'delete')
        ) i
        JOIN places e USING (resource, item_key)
        JOIN run_tables t USING (resource)
        WHERE e.role IN ('orders', 'guard', 'reference')
    )
);

-- Those that happened or may have. `details_no`: the details that an accepted one left; 0: such
-- that no message carries; NULL: none, or not known.
CREATE TABLE effective_items AS
SELECT w.* EXCLUDE (absent_meets, details_after),
    CASE WHEN w.details_after IS NOT NULL THEN coalesce(s.details_no, 0) END AS details_no
FROM item_writes w LEFT JOIN said s ON s.details = w.details_after
WHERE w.decision IN ('accepted', 'unknown');

-- Those that the store refused: nobody asks for their images.
CREATE TABLE refused_items AS
SELECT call_id, place_no, role, action, decision, key_no, poison, absent_meets
FROM item_writes WHERE decision IN ('rejected', 'failed');

-- The effective ones with their calls. `own_no`: the order that the key is, when the invocation was
-- given that order. It is the order of the write; for all others see `attribution`. Filled by
-- effective.sql.
CREATE TABLE effective (
    call_id BIGINT, place_no INTEGER, role ENUM ('orders', 'guard', 'reference'),
    action ENUM ('put', 'update', 'delete'),
    decision ENUM ('accepted', 'unknown', 'rejected', 'failed'),
    reply ENUM ('accepted', 'unknown', 'rejected', 'failed'), invocation_id BIGINT,
    sent_at BIGINT, answered_at BIGINT, own_no INTEGER, own_poison BOOLEAN, insert_only BOOLEAN,
    before_known BOOLEAN, after_known BOOLEAN, changed BOOLEAN, arrives BOOLEAN, leaves BOOLEAN,
    complete_before BOOLEAN, complete_after BOOLEAN, details_no INTEGER
);

-- The refused ones with their calls. Filled by refused.sql.
CREATE TABLE refused (
    call_id BIGINT, place_no INTEGER, role ENUM ('orders', 'guard', 'reference'),
    action ENUM ('put', 'update', 'delete'),
    decision ENUM ('accepted', 'unknown', 'rejected', 'failed'),
    reply ENUM ('accepted', 'unknown', 'rejected', 'failed'), invocation_id BIGINT,
    answered_at BIGINT, own_no INTEGER, own_poison BOOLEAN, absent_meets BOOLEAN
);
