-- Version 1 of the spans database; inserts.sql is what version 2 added. Tables hold Unix times as whole
-- microseconds, views as REAL seconds. The names of tables end in _row; the views have dnpcsql's names and columns.

-- The strings that repeat (types, names, hosts), each once.
CREATE TABLE string (id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE);

-- A scope is one workflow run, one log or one trace. A key is unique within its scope and type.
CREATE TABLE scope (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);

-- The imported sources. `unread` counts the lines that were not understood (JSON: wording -> lines).
CREATE TABLE source_row (
    id INTEGER PRIMARY KEY,
    importer TEXT NOT NULL,
    location TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    imported_us INTEGER NOT NULL,
    unread TEXT,
    UNIQUE (importer, location)
);

-- One named piece of the workflow. Its type, scope and key identify it: importing it twice finds the
-- same row.
CREATE TABLE span_row (
    id INTEGER PRIMARY KEY,
    type_id INTEGER NOT NULL,
    scope_id INTEGER NOT NULL,
    key NOT NULL,
    name_id INTEGER,
    host_id INTEGER,
    attributes TEXT,
    UNIQUE (type_id, scope_id, key)
);

-- The events of the spans, stored in the order of span and time. `n` numbers equal events within one
-- microsecond.
CREATE TABLE event_row (
    span_id INTEGER NOT NULL,
    time_us INTEGER NOT NULL,
    type_id INTEGER NOT NULL,
    n INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (span_id, time_us, type_id, n)
) WITHOUT ROWID;

-- A span is part of another. `key` names it there: the number of a task in its workflow.
CREATE TABLE subspan_row (
    super_id INTEGER NOT NULL,
    sub_id INTEGER NOT NULL,
    key,
    PRIMARY KEY (super_id, sub_id)
) WITHOUT ROWID;
CREATE INDEX subspan_row_sub ON subspan_row (sub_id);

-- Two spans are the same thing, seen by two sources.
CREATE TABLE facet_row (
    left_id INTEGER NOT NULL,
    right_id INTEGER NOT NULL,
    note_id INTEGER,
    PRIMARY KEY (left_id, right_id)
) WITHOUT ROWID;
CREATE INDEX facet_row_right ON facet_row (right_id);

-- A span could start only when another had ended.
CREATE TABLE dependency_row (
    span_id INTEGER NOT NULL,
    needs_id INTEGER NOT NULL,
    PRIMARY KEY (span_id, needs_id)
) WITHOUT ROWID;

-- A figure of a span at a time: resource samples, METRIC lines, MLflow metrics.
CREATE TABLE metric_row (
    span_id INTEGER NOT NULL,
    name_id INTEGER NOT NULL,
    time_us INTEGER NOT NULL,
    value REAL NOT NULL,
    PRIMARY KEY (span_id, name_id, time_us)
) WITHOUT ROWID;

-- A copy of the events and relations as arrays, so that an analysis need not read a million rows. Each
-- row is one piece of an array: it has `rows` rows, sorted by their first column, whose last value is
-- `last`.
CREATE TABLE column_cache (
    name TEXT NOT NULL,
    last INTEGER NOT NULL,
    rows INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (name, last)
);

CREATE VIEW span (uuid, type, note) AS
    SELECT s.id, t.text, n.text
    FROM span_row s JOIN string t ON t.id = s.type_id LEFT JOIN string n ON n.id = s.name_id;

CREATE VIEW event (uuid, span_uuid, time, type, note) AS
    SELECT e.span_id || ':' || e.time_us || ':' || e.type_id || ':' || e.n,
           e.span_id, e.time_us / 1e6, t.text, NULL
    FROM event_row e JOIN string t ON t.id = e.type_id;

CREATE VIEW subspan (superspan_uuid, subspan_uuid, key, note) AS
    SELECT super_id, sub_id, CAST(key AS TEXT), NULL FROM subspan_row;

CREATE VIEW facet (left_uuid, right_uuid, note) AS
    SELECT f.left_id, f.right_id, n.text
    FROM facet_row f LEFT JOIN string n ON n.id = f.note_id;

CREATE VIEW dependency (span_uuid, needs_uuid) AS
    SELECT span_id, needs_id FROM dependency_row;

CREATE VIEW metric (span_uuid, time, name, value) AS
    SELECT m.span_id, m.time_us / 1e6, n.text, m.value
    FROM metric_row m JOIN string n ON n.id = m.name_id;

-- A span with its run and host, and the times of its first and last event.
CREATE VIEW interval (uuid, type, key, name, host, run, attributes, start, end) AS
    SELECT s.id, t.text, s.key, n.text, h.text, c.name, s.attributes,
           (SELECT min(time_us) FROM event_row e WHERE e.span_id = s.id) / 1e6,
           (SELECT max(time_us) FROM event_row e WHERE e.span_id = s.id) / 1e6
    FROM span_row s
    JOIN string t ON t.id = s.type_id
    JOIN scope c ON c.id = s.scope_id
    LEFT JOIN string n ON n.id = s.name_id
    LEFT JOIN string h ON h.id = s.host_id;

CREATE VIEW source (importer, location, imported, unread) AS
    SELECT importer, location, imported_us / 1e6, unread FROM source_row;
