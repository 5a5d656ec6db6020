-- Statements of the monitoring importer. Their placeholders are:
--   @time(x)        the Unix microseconds of the local time x of a run r
--   @sample_time(x) the same for a time that a worker wrote, whose clock may be in another zone
--   @optional(t.c)  the column c of the table t, or NULL if this version of Parsl does not have it
--   @of_run(x)      the rows of the table x, each with its run r
-- The large tables (states, tasks' times, subspans) pass through arrays: monitoring_source.

-- name: run_table
CREATE TABLE temp.run (
    run_id TEXT PRIMARY KEY, scope_id INTEGER, offset_us INTEGER, change TEXT, later_us INTEGER
) WITHOUT ROWID;

-- name: try_number_table
CREATE TABLE temp.try_number (key INTEGER PRIMARY KEY, id INTEGER, shift_us INTEGER);

-- name: words
INSERT OR IGNORE INTO main.string (text)
SELECT DISTINCT task_func_name FROM source.task WHERE task_func_name IS NOT NULL
UNION SELECT DISTINCT @optional(try.hostname) FROM source.try WHERE @optional(try.hostname) <> ''
UNION SELECT DISTINCT @optional(w.workflow_name) FROM source.workflow w
    WHERE @optional(w.workflow_name) <> ''
UNION SELECT DISTINCT @optional(w.host) FROM source.workflow w WHERE @optional(w.host) <> '';

-- name: workflow_spans
INSERT INTO main.span_row (type_id, scope_id, key, name_id, host_id, attributes)
SELECT :type, r.scope_id, 0,
       (SELECT id FROM main.string WHERE text = @optional(w.workflow_name)),
       (SELECT id FROM main.string WHERE text = @optional(w.host)),
       json_object('run_id', w.run_id, 'version', @optional(w.workflow_version))
FROM @of_run(source.workflow w)
WHERE true
ON CONFLICT (type_id, scope_id, key) DO NOTHING;

-- name: task_spans
INSERT INTO main.span_row (type_id, scope_id, key, name_id)
SELECT :type, r.scope_id, t.task_id, n.id
FROM @of_run(source.task t)
LEFT JOIN main.string n ON n.text = t.task_func_name
WHERE true
ON CONFLICT (type_id, scope_id, key) DO NOTHING;

-- name: try_spans
INSERT INTO main.span_row (type_id, scope_id, key, host_id, attributes)
SELECT :type, r.scope_id, y.task_id << 16 | y.try_id, n.id,
       CASE WHEN coalesce(@optional(y.task_fail_history), '') = ''
            THEN json_object('executor', @optional(y.task_executor),
                             'block', @optional(y.block_id))
            ELSE json_object('executor', @optional(y.task_executor),
                             'block', @optional(y.block_id),
                             'error', substr(@optional(y.task_fail_history), 1, 500)) END
FROM @of_run(source.try y)
LEFT JOIN main.string n ON n.text = @optional(y.hostname)
WHERE true
ON CONFLICT (type_id, scope_id, key) DO UPDATE
    SET host_id = excluded.host_id, attributes = excluded.attributes
    WHERE host_id IS NOT excluded.host_id OR attributes IS NOT excluded.attributes;

-- name: workflow_events
SELECT s.id, @time(w.time_began), :began
FROM @of_run(source.workflow w)
JOIN main.span_row s ON s.type_id = :type AND s.scope_id = r.scope_id AND s.key = 0
UNION ALL
SELECT s.id, @time(w.time_completed), :completed
FROM @of_run(source.workflow w)
JOIN main.span_row s ON s.type_id = :type AND s.scope_id = r.scope_id AND s.key = 0
WHERE w.time_completed IS NOT NULL;

-- name: states
SELECT DISTINCT task_status_name FROM source.status
WHERE rowid BETWEEN ? AND ? AND task_status_name IS NOT NULL LIMIT 1000;

-- name: block_spans
INSERT INTO main.span_row (type_id, scope_id, key, name_id, attributes)
SELECT :type, r.scope_id, b.executor_label || '/' || b.block_id, n.id,
       json_object('job_id', max(b.job_id))
FROM @of_run(source.block b)
LEFT JOIN main.string n ON n.text = b.executor_label
GROUP BY 2, 3
ON CONFLICT (type_id, scope_id, key) DO UPDATE SET attributes = excluded.attributes
    WHERE attributes IS NOT excluded.attributes;

-- name: block_words
INSERT OR IGNORE INTO main.string (text)
SELECT status FROM source.block WHERE status IS NOT NULL
UNION SELECT executor_label FROM source.block WHERE executor_label IS NOT NULL;

-- name: block_events
SELECT s.id, @time(b.timestamp), n.id
FROM @of_run(source.block b)
JOIN main.span_row s ON s.type_id = :type AND s.scope_id = r.scope_id
    AND s.key = b.executor_label || '/' || b.block_id
JOIN main.string n ON n.text = b.status;

-- name: block_subspans
INSERT OR IGNORE INTO main.subspan_row
SELECT w.id, b.id, b.key
FROM temp.run r
JOIN main.span_row w ON w.type_id = :workflow AND w.scope_id = r.scope_id
JOIN main.span_row b ON b.type_id = :type AND b.scope_id = r.scope_id;

-- name: try_in_block
INSERT OR IGNORE INTO main.subspan_row
SELECT b.id, m.id, CAST(y.task_id AS TEXT) || '/' || y.try_id
FROM @of_run(source.try y)
CROSS JOIN temp.try_number m ON m.key = (r.scope_id << 44) + (y.task_id << 16) + y.try_id
JOIN main.span_row b ON b.type_id = :type AND b.scope_id = r.scope_id
    AND b.key = @optional(y.task_executor) || '/' || @optional(y.block_id);

-- name: node_words
INSERT OR IGNORE INTO main.string (text)
SELECT hostname FROM source.node WHERE hostname IS NOT NULL
UNION SELECT uid FROM source.node WHERE uid IS NOT NULL;

-- name: node_spans
INSERT INTO main.span_row (type_id, scope_id, key, name_id, host_id, attributes)
SELECT :type, r.scope_id, n.uid, u.id, h.id,
       json_object('block', max(n.block_id), 'cpu_count', max(n.cpu_count),
                   'total_memory_mb', round(max(n.total_memory) / 1048576.0, 1),
                   'worker_count', max(n.worker_count))
FROM @of_run(source.node n)
JOIN main.string u ON u.text = n.uid LEFT JOIN main.string h ON h.text = n.hostname
GROUP BY 2, 3
ON CONFLICT (type_id, scope_id, key) DO UPDATE SET attributes = excluded.attributes
    WHERE attributes IS NOT excluded.attributes;

-- name: node_events
SELECT s.id, @time(n.timestamp), CASE WHEN n.active THEN :active ELSE :inactive END
FROM (SELECT *, lag(active) OVER (PARTITION BY run_id, uid ORDER BY timestamp, id) AS before
      FROM source.node) n
CROSS JOIN temp.run r ON r.run_id = n.run_id
JOIN main.span_row s ON s.type_id = :type AND s.scope_id = r.scope_id AND s.key = n.uid
WHERE n.before IS NOT n.active;

-- name: node_subspans
INSERT OR IGNORE INTO main.subspan_row
SELECT DISTINCT coalesce(b.id, w.id), s.id, n.uid
FROM @of_run(source.node n)
JOIN main.span_row s ON s.type_id = :type AND s.scope_id = r.scope_id AND s.key = n.uid
JOIN main.span_row w ON w.type_id = :workflow AND w.scope_id = r.scope_id
LEFT JOIN main.span_row b ON b.type_id = :block AND b.scope_id = r.scope_id
    AND b.key LIKE '%/' || n.block_id;

-- name: resource_table
CREATE TABLE temp.sample AS
SELECT m.id, @sample_time(p.timestamp) AS time_us,
       max(0, p.cpu - lag(p.cpu) OVER process) AS cpu_s,
       max(0, p.read - lag(p.read) OVER process) / 1048576.0 AS read_mb,
       max(0, p.written - lag(p.written) OVER process) / 1048576.0 AS written_mb,
       p.resident / 1048576.0 AS memory_mb, p.share AS memory_percent
FROM (SELECT s.run_id, s.task_id, s.try_id, s.timestamp, t.hostname AS hostname,
             s.psutil_process_pid AS pid,
             s.psutil_process_time_user + s.psutil_process_time_system AS cpu,
             s.psutil_process_disk_read AS read, s.psutil_process_disk_write AS written,
             s.psutil_process_memory_resident AS resident,
             s.psutil_process_memory_percent AS share
      FROM source.resource s
      JOIN source.try t ON t.try_id = s.try_id AND t.task_id = s.task_id AND t.run_id = s.run_id
     ) p
CROSS JOIN temp.run r ON r.run_id = p.run_id
CROSS JOIN temp.try_number m ON m.key = (r.scope_id << 44) + (p.task_id << 16) + p.try_id
WINDOW process AS (PARTITION BY p.run_id, p.hostname, p.pid ORDER BY p.timestamp);

-- name: resource_metrics
INSERT OR IGNORE INTO main.metric_row
SELECT id, :cpu_s, time_us, cpu_s FROM temp.sample WHERE cpu_s IS NOT NULL
UNION ALL SELECT id, :memory_mb, time_us, memory_mb FROM temp.sample WHERE memory_mb IS NOT NULL
UNION ALL SELECT id, :memory_percent, time_us, memory_percent FROM temp.sample
    WHERE memory_percent IS NOT NULL
UNION ALL SELECT id, :disk_read_mb, time_us, read_mb FROM temp.sample WHERE read_mb IS NOT NULL
UNION ALL SELECT id, :disk_write_mb, time_us, written_mb FROM temp.sample
    WHERE written_mb IS NOT NULL
ORDER BY 1, 2, 3;

-- name: dependencies
SELECT group_concat(r.scope_id), group_concat(t.task_id),
       group_concat(length(t.task_depends) - length(replace(t.task_depends, ',', '')) + 1),
       group_concat(t.task_depends)
FROM @of_run(source.task t)
WHERE t.rowid BETWEEN :low AND :high AND t.task_depends <> ''
  AND (t.task_depends NOT GLOB '*[^0-9]*'
       OR t.task_depends NOT GLOB '*[^0-9, ]*' AND t.task_depends NOT GLOB '*[0-9] *'
       AND ',' || replace(t.task_depends, ' ', '') || ',' NOT GLOB '*,,*');

-- name: worker_delay
SELECT e.timestamp, y.task_try_time_returned
FROM temp.run r
CROSS JOIN source.try y ON y.run_id = r.run_id AND y.task_id = :task AND y.try_id = :attempt
CROSS JOIN source.status e ON e.task_id = y.task_id AND e.run_id = y.run_id
    AND e.task_status_name = 'running_ended' AND e.try_id = y.try_id
WHERE r.scope_id = :scope AND y.task_try_time_returned IS NOT NULL;

-- name: unread
SELECT 'row of a run that has no workflow row', count(*) FROM source.task t
WHERE t.run_id NOT IN (SELECT run_id FROM source.workflow);
