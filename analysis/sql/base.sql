-- Who is who: what the exposure and the checks both start from.
--
-- Texts are long and compared often, so each gets a number here, once: an order key its
-- `order_no`, what a message says of its order its `variant_no`, and the details in that, which
-- several may have in common, their `details_no`. All that follows joins numbers.

-- What the messages of an order say, each different thing once (`details` NULL: poison).
CREATE TABLE variants AS
WITH texts AS MATERIALIZED (
    SELECT order_key, expected_item, bool_and(kind = 'poison') AS poison,
        details(expected_item) AS details
    FROM messages GROUP BY order_key, expected_item
), numbered AS (
    SELECT (row_number() OVER ())::INTEGER AS order_no, order_key, bool_and(poison) AS all_poison
    FROM texts GROUP BY order_key
), different AS (
    SELECT (row_number() OVER ())::INTEGER AS details_no, details FROM texts GROUP BY details
)
SELECT (row_number() OVER ())::INTEGER AS variant_no, n.order_no, t.order_key, t.poison,
    n.all_poison, t.expected_item, d.details_no, t.details
FROM texts t JOIN numbered n USING (order_key) LEFT JOIN different d USING (details);

-- All the details that any message carries.
CREATE TABLE said AS
SELECT details_no, any_value(details) AS details FROM variants
WHERE details_no IS NOT NULL GROUP BY details_no;

CREATE TABLE orders AS
SELECT DISTINCT order_no, order_key, all_poison AS poison FROM variants;

-- Every message of the plan. `resent`: it may be several physical messages.
CREATE TABLE planned AS
SELECT m.message_no, v.order_no, v.variant_no, v.poison, m.accepted_at IS NOT NULL AS accepted,
    m.attempts > 1 AS resent
FROM messages m
JOIN variants v
    ON v.order_key = m.order_key AND v.expected_item IS NOT DISTINCT FROM m.expected_item;

-- Every message an invocation was given, with what the invocation reported for it and when it
-- ended. `deleted_at`: this delivery's delete succeeded; `at_once`: the first receive of the
-- only physical message. Filled by handled.sql.
CREATE TABLE handled (
    invocation_id BIGINT, delivery_id BIGINT, message_no BIGINT, order_no INTEGER,
    variant_no INTEGER, poison BOOLEAN, result ENUM ('processed', 'duplicate', 'failed'),
    received_at BIGINT, ended_at BIGINT, deleted_at BIGINT, at_once BOOLEAN
);

-- The orders that an invocation was given, each once. `poison`: only poison messages of it.
-- Filled by assigned.sql.
CREATE TABLE assigned (invocation_id BIGINT, order_no INTEGER, poison BOOLEAN);

-- What became of every message of the plan: when it was first received from the queue, when it
-- was first deleted and what had been reported for it then. `quiet`: received once, given to
-- the handler and deleted. Filled by histories.sql.
CREATE TABLE histories (
    message_no BIGINT, intended_at BIGINT, sent_at BIGINT, accepted_at BIGINT,
    received_at BIGINT, deleted_at BIGINT, result ENUM ('processed', 'duplicate', 'failed'),
    quiet BOOLEAN
);
