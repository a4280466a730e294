"""Answers queries by DuckDB: a line with a JSON text in, one with {"rows": ..} or {"error": ..} out.

A text that begins with `open ` opens a recording as the tables IO and IOstream."""

import datetime
import json
import pathlib
import sys

import duckdb

EVENT = """type, op, req_id, sector, sectors, bytes, vm, vdisk, pdisk, host, level, pid, comm,
cgroup, cpu, flags, error, merges, vsector"""


def value(x):
    """Timestamps as weir writes them; the rest is JSON."""
    if isinstance(x, datetime.datetime):
        return x.strftime("%Y-%m-%dT%H:%M:%S.%f") + "000Z"
    if isinstance(x, (bool, int, float, str)) or x is None:
        return x
    raise TypeError(f"a value of type {type(x)} has to be cast")


def documented_view():
    """The view of docs/traces.md."""
    page = pathlib.Path(__file__).parents[4] / "docs/traces.md"
    return page.read_text().split("```sql\n")[1].split("```")[0]


def connect():
    connection = duckdb.connect()
    for option in ("error_on_division_by_zero = false", "order_by_non_integer_literal = true", "threads = 1"):
        connection.execute(f"SET {option}")
    return connection


def opened(path):
    connection = connect()
    connection.execute(f"""
        CREATE VIEW recording AS SELECT * FROM read_parquet('{path}', file_row_number = true)""")
    connection.execute(documented_view())
    connection.execute("DROP VIEW IO")
    view = documented_view().replace("create view IO", "create view documented")
    # The tests need the order of the file as well.
    excluded = "exclude (issued, file_row_number,"
    assert excluded in view
    connection.execute(view.replace(excluded, "exclude (issued,"))
    connection.execute("""
        CREATE TABLE restored AS
        SELECT * EXCLUDE (ts, file_row_number), file_row_number AS row,
            make_timestamp_ns(epoch_ns(ts))::timestamp AS ts, epoch_ns(ts) AS ns
        FROM documented""")
    # The order of events with equal times is that in which weir delivers them.
    connection.execute(f"""
        CREATE TABLE events AS
        SELECT row_number() OVER (ORDER BY ns, late, place, is_response) AS number, * FROM (
            SELECT *, 0 AS late, row AS place, 1 AS is_response FROM restored
            UNION ALL BY NAME
            SELECT * REPLACE ('Q' AS type, NULL AS error, issue_ts AS ts, epoch_ns(issue_ts) AS ns,
                "weir.request_agent_ts" AS agent_ts, "weir.request_monitor_ts" AS monitor_ts),
                (issue_ts <> ts)::int AS late, if(issue_ts = ts, row, req_id) AS place, 0 AS is_response
            FROM restored WHERE "weir.request" > 0);
        CREATE VIEW IO AS SELECT number, ns, ts, {EVENT}, wait, service, latency, in_flight, seek,
            interarrival, issue_ts
        FROM events WHERE type <> 'Q';
        CREATE VIEW IOstream AS SELECT number, ns, ts, {EVENT} FROM events""")
    return connection


def main():
    connection = connect()
    for line in sys.stdin:
        text = json.loads(line)
        try:
            if text.startswith("open "):
                connection = opened(text.removeprefix("open "))
                answer = {"rows": []}
            else:
                rows = connection.execute(text).fetchall()
                answer = {"rows": [[value(x) for x in row] for row in rows]}
        except Exception as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


main()
