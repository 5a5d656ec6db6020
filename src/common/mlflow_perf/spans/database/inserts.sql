-- Version 2: the views with dnpcsql's names take inserts, so that importers written for dnpcsql work.
-- Their spans are in the scope 0, with the uuid that they give as key. The views show our own numbers
-- for them. Statements in here do not rely on conflict clauses: those of the user's statement, such as
-- INSERT OR REPLACE, would override them.

CREATE UNIQUE INDEX span_row_inserted ON span_row (key) WHERE scope_id = 0;

CREATE TRIGGER span_insert INSTEAD OF INSERT ON span BEGIN
    SELECT RAISE(ABORT, 'a span needs a uuid and a type') WHERE NEW.uuid IS NULL OR NEW.type IS NULL;
    INSERT INTO scope (id, name)
        SELECT 0, 'inserted with SQL' WHERE NOT EXISTS (SELECT 1 FROM scope WHERE id = 0);
    INSERT INTO string (text)
        SELECT DISTINCT word FROM (SELECT NEW.type AS word UNION ALL SELECT NEW.note)
        WHERE word IS NOT NULL AND NOT EXISTS (SELECT 1 FROM string WHERE text = word);
    INSERT INTO span_row (id, type_id, scope_id, key, name_id) VALUES (
        (SELECT id FROM span_row WHERE scope_id = 0 AND key = NEW.uuid),
        (SELECT id FROM string WHERE text = NEW.type), 0, NEW.uuid,
        (SELECT id FROM string WHERE text = NEW.note));
END;

-- A uuid that was inserted, or the number of a span as the views show it, becomes that number.
CREATE VIEW inserted_uuid (uuid, span_id) AS
    SELECT key, id FROM span_row WHERE scope_id = 0;

CREATE TRIGGER event_insert INSTEAD OF INSERT ON event BEGIN
    SELECT RAISE(ABORT, 'an event needs a type, and a time in seconds since 1970')
        WHERE NEW.type IS NULL OR NEW.time IS NULL
        OR typeof(NEW.time + 0) NOT IN ('integer', 'real') OR abs(NEW.time + 0) NOT BETWEEN 1 AND 1e12;
    SELECT RAISE(ABORT, 'the span of an event must be inserted before it') WHERE NOT EXISTS (
        SELECT 1 FROM inserted_uuid WHERE uuid = NEW.span_uuid
        UNION ALL SELECT 1 FROM span_row WHERE id = NEW.span_uuid);
    INSERT INTO string (text)
        SELECT NEW.type WHERE NOT EXISTS (SELECT 1 FROM string WHERE text = NEW.type);
    INSERT INTO event_row (span_id, time_us, type_id, n)
        SELECT span, moment, kind, (SELECT count(*) FROM event_row
            WHERE span_id = span AND time_us = moment AND type_id = kind)
        FROM (SELECT coalesce((SELECT span_id FROM inserted_uuid WHERE uuid = NEW.span_uuid),
                              NEW.span_uuid) AS span,
                     CAST(round(NEW.time * 1e6) AS INTEGER) AS moment,
                     (SELECT id FROM string WHERE text = NEW.type) AS kind);
END;

CREATE TRIGGER subspan_insert INSTEAD OF INSERT ON subspan BEGIN
    SELECT RAISE(ABORT, 'both spans of a subspan must be inserted before it') WHERE 2 > (
        SELECT count(*) FROM (SELECT NEW.superspan_uuid AS uuid UNION ALL SELECT NEW.subspan_uuid) w
        WHERE EXISTS (SELECT 1 FROM inserted_uuid i WHERE i.uuid = w.uuid
                      UNION ALL SELECT 1 FROM span_row WHERE id = w.uuid));
    INSERT INTO subspan_row (super_id, sub_id, key) VALUES (
        coalesce((SELECT span_id FROM inserted_uuid WHERE uuid = NEW.superspan_uuid),
                 NEW.superspan_uuid),
        coalesce((SELECT span_id FROM inserted_uuid WHERE uuid = NEW.subspan_uuid),
                 NEW.subspan_uuid),
        NEW.key);
END;

CREATE TRIGGER facet_insert INSTEAD OF INSERT ON facet BEGIN
    SELECT RAISE(ABORT, 'both spans of a facet must be inserted before it') WHERE 2 > (
        SELECT count(*) FROM (SELECT NEW.left_uuid AS uuid UNION ALL SELECT NEW.right_uuid) w
        WHERE EXISTS (SELECT 1 FROM inserted_uuid i WHERE i.uuid = w.uuid
                      UNION ALL SELECT 1 FROM span_row WHERE id = w.uuid));
    INSERT INTO string (text) SELECT NEW.note
        WHERE NEW.note IS NOT NULL AND NOT EXISTS (SELECT 1 FROM string WHERE text = NEW.note);
    INSERT INTO facet_row (left_id, right_id, note_id) VALUES (
        coalesce((SELECT span_id FROM inserted_uuid WHERE uuid = NEW.left_uuid), NEW.left_uuid),
        coalesce((SELECT span_id FROM inserted_uuid WHERE uuid = NEW.right_uuid), NEW.right_uuid),
        (SELECT id FROM string WHERE text = NEW.note));
END;
