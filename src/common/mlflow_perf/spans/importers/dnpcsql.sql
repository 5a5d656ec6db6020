-- Statements of the dnpcsql importer, in the order in which it runs them. dnpcsql's uuids are globally
-- unique: one scope holds the spans of all its databases.

-- name: words
INSERT OR IGNORE INTO main.string (text)
SELECT type FROM source.span WHERE type <> ''
UNION SELECT type FROM source.event WHERE type <> ''
UNION SELECT note FROM source.span WHERE note <> '';

-- name: spans
INSERT OR IGNORE INTO main.span_row (type_id, scope_id, key, name_id)
SELECT t.id, :scope, s.uuid, n.id FROM source.span s JOIN main.string t ON t.text = s.type
LEFT JOIN main.string n ON n.text = s.note WHERE s.uuid IS NOT NULL;

-- name: drop_numbers
DROP TABLE IF EXISTS temp.span_number;

-- name: numbers
CREATE TABLE temp.span_number AS
SELECT key, id FROM main.span_row WHERE scope_id = (SELECT id FROM main.scope WHERE name = 'dnpcsql');

-- name: index
CREATE INDEX temp.span_number_key ON span_number (key);

-- name: events
-- The times are texts of Unix seconds. Equal events within one microsecond are numbered.
INSERT OR IGNORE INTO main.event_row
SELECT m.id, e.time_us, t.id,
       row_number() OVER (PARTITION BY m.id, e.time_us, t.id ORDER BY e.uuid) - 1
FROM (SELECT uuid, span_uuid, type, CAST(round(time * 1e6) AS INTEGER) AS time_us
      FROM source.event WHERE time GLOB '[0-9]*') e
JOIN temp.span_number m ON m.key = e.span_uuid JOIN main.string t ON t.text = e.type;

-- name: subspans
INSERT OR IGNORE INTO main.subspan_row
SELECT a.id, b.id, s.key FROM source.subspan s
JOIN temp.span_number a ON a.key = s.superspan_uuid
JOIN temp.span_number b ON b.key = s.subspan_uuid;

-- name: facets
INSERT OR IGNORE INTO main.facet_row
SELECT a.id, b.id, NULL FROM source.facet f
JOIN temp.span_number a ON a.key = f.left_uuid JOIN temp.span_number b ON b.key = f.right_uuid;

-- name: unread
SELECT count(*) FROM source.event e WHERE NOT coalesce(time GLOB '[0-9]*', 0)
OR span_uuid NOT IN (SELECT key FROM temp.span_number);
