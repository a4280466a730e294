"""Answers queries by DuckDB: a line with a JSON text in, one with {"rows": ..} or {"error": ..} out.

A text that begins with `open ` opens a recording as the tables IO and IOstream."""

import datetime
import json
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


def connect():
    connection = duckdb.connect()
    for option in ("error_on_division_by_zero = false", "order_by_non_integer_literal = true", "threads = 1"):
        connection.execute(f"SET {option}")
    return connection


def opened(path):
    connection = connect()
    connection.execute(f"""
        CREATE TABLE recording AS SELECT
            file_row_number AS number, epoch_ns(ts) AS ns, make_timestamp_ns(epoch_ns(ts))::timestamp AS ts,
            {EVENT}, wait, service, latency, in_flight, seek,
            make_timestamp_ns(epoch_ns(issue_ts))::timestamp AS issue_ts
        FROM read_parquet('{path}', file_row_number = true);
        CREATE VIEW IO AS SELECT * FROM recording WHERE type <> 'Q';
        CREATE VIEW IOstream AS SELECT number, ns, ts, {EVENT} FROM recording""")
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
