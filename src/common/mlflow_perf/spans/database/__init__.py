"""The SQLite file of spans: schema, writing, arrays, SQL."""
