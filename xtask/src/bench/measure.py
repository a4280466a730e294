"""Measures programs, and queries of DuckDB: a line of JSON in, one of JSON out.

{"run": [PROGRAM, ARGUMENT, ..]} runs a program, {"sql": TEXT} a query in a connection of its own.
The answer has seconds of wall time and of processor time, and the rows of a query."""

import json
import os
import resource
import subprocess
import sys
import time

import duckdb


def run(command):
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    # A reader of its own would be slower than the output: bytes are discarded.
    lines = 0
    while block := os.read(process.stdout.fileno(), 1 << 20):
        lines += block.count(b"\n")
    message = process.stderr.read().decode()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        return {"error": f"{' '.join(command)}: {message}"}
    wall = time.perf_counter() - begin
    return {"wall": wall, "processor": used.ru_utime + used.ru_stime, "rows": lines}


def query(text):
    def used():
        now = resource.getrusage(resource.RUSAGE_SELF)
        return now.ru_utime + now.ru_stime

    connection = duckdb.connect()
    before, begin = used(), time.perf_counter()
    rows = len(connection.execute(text).fetchall())
    return {"wall": time.perf_counter() - begin, "processor": used() - before, "rows": rows}


for line in sys.stdin:
    request = json.loads(line)
    try:
        answer = run(request["run"]) if "run" in request else query(request["sql"])
    except Exception as error:
        answer = {"error": str(error)}
    print(json.dumps(answer), flush=True)
