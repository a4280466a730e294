#!/usr/bin/env python3
"""Places a query at a monitor and prints its result as it changes.

    pip install pyarrow
    python3 examples/watch.py "select vm, count(*) from IO [range 1 s slide 1 s] group by vm"
    python3 examples/watch.py --monitor grpc+tls://m:7733 --ca authority.crt \\
        --certificate client-alice.crt --key client-alice.key "select ..."

Each line is one row: its instant, its weight if the result is a relation (+ inserted, - retracted),
and its columns. The completeness of the result (hosts, rows lost) is written to standard error.
"""

import argparse
import json
import sys

import pyarrow.flight as flight


def main():
    options = arguments()
    client = flight.FlightClient(options.monitor, **tls(options))
    call = flight.FlightCallOptions(headers=headers(options))

    # GetFlightInfo places the query; the ticket in its reply watches it.
    descriptor = flight.FlightDescriptor.for_command(options.query.encode())
    placed = client.get_flight_info(descriptor, call)
    reader = client.do_get(placed.endpoints[0].ticket, call)

    reported = None
    shown = 0
    for chunk in reader:
        note = json.loads(chunk.app_metadata.to_pybytes()) if chunk.app_metadata else {}
        if note.get("reset") is not None:
            print("# the current content of the relation follows", flush=True)
        for row in chunk.data.to_pylist():
            print(line(row), flush=True)
            shown += 1
            if options.rows and shown == options.rows:
                return
        reported = report(note, reported)


def arguments():
    parser = argparse.ArgumentParser(description="watch a query of a weir monitor")
    parser.add_argument("query", help="a query in CQL")
    parser.add_argument(
        "--monitor",
        default="grpc+unix:///run/weir-monitor/monitor.sock",
        help="grpc+unix://PATH, grpc://.. or grpc+tls://..",
    )
    parser.add_argument("--token-file", help="file with your token")
    parser.add_argument("--ca", help="certificate of the authority of the monitor (PEM)")
    parser.add_argument("--certificate", help="your certificate (PEM)")
    parser.add_argument("--key", help="your key (PEM)")
    parser.add_argument("--rows", type=int, help="end after this number of rows")
    return parser.parse_args()


def tls(options):
    files = {
        "tls_root_certs": options.ca,
        "cert_chain": options.certificate,
        "private_key": options.key,
    }
    return {name: open(path, "rb").read() for name, path in files.items() if path}


def headers(options):
    if not options.token_file:
        return []
    with open(options.token_file) as file:
        return [(b"authorization", b"Bearer " + file.read().strip().encode())]


def line(row):
    weight = row.pop("weight", None)
    sign = "" if weight is None else f" {weight:+d}"
    values = ", ".join(f"{name} {value}" for name, value in row.items() if name != "instant")
    return f"{row['instant']}{sign}: {values}"


def report(note, reported):
    """Writes the completeness of the result if it has changed."""
    names = ["hosts_responded", "hosts", "rows_lost", "rows_late", "skipped", "ended"]
    now = {name: note[name] for name in names if note.get(name)}
    if now and now != reported:
        print(" ".join(f"{name}={value}" for name, value in now.items()), file=sys.stderr)
        return now
    return reported


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
    except flight.FlightError as error:
        sys.exit(f"watch.py: {error}")
