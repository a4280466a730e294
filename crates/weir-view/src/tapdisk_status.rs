//! The status of a tapdisk as text.

use std::fmt::Write;
use std::time::Duration;

use weir_model::Unit;
use weir_sink::number::scaled;
use weir_sink::text::shown;
use weir_tap::tapdisk::words::{ConsumerStatus, DiskStatus, StatusWord};

/// The status page; `now_ns` is the time of the request, since the Unix epoch.
pub fn page(status: &StatusWord, now_ns: i64) -> String {
    let mut page = format!(
        "weir tapdisk {}, pid {}, for {}\n",
        shown(&status.program),
        status.pid,
        age(status.since_ns, now_ns)
    );
    for disk in &status.disks {
        page += &disk_page(disk);
    }
    page += &consumers(&status.consumers, now_ns);
    page
}

fn disk_page(disk: &DiskStatus) -> String {
    let figures = &disk.figures;
    let bytes = |bytes: u64| amount(bytes as f64, Unit::Bytes);
    let name = |text: &Option<String>, unknown: &str| {
        text.as_deref()
            .map_or(unknown.to_owned(), |text| shown(text).into_owned())
    };
    let mut page = format!(
        "\n{} of {}: {}\n",
        name(&disk.disk.vdisk, "a disk"),
        name(&disk.disk.vm, "a VM without name"),
        name(&disk.disk.pdisk, "no image")
    );
    let read_only = if figures.read_only { ", read-only" } else { "" };
    let _ = writeln!(
        page,
        "  {}, blocks of {} bytes, serial {}, {}{read_only}",
        bytes(figures.size_bytes),
        figures.block_bytes,
        shown(&figures.serial),
        shown(&figures.engine)
    );
    for socket in &figures.sockets {
        let _ = writeln!(page, "  at {}", shown(socket));
    }
    let _ = writeln!(
        page,
        "  {} queues open, {} in flight",
        disk.queues, figures.in_flight
    );
    if !figures.limits.is_unlimited() {
        let _ = writeln!(
            page,
            "  limited to {}: {} of them held",
            figures.limits, figures.held
        );
    }
    let head = ["op", "requests", "bytes", "errors", "mean latency"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for op in figures.ops.iter().filter(|op| op.requests > 0) {
        rows.push(vec![
            op.op.clone(),
            op.requests.to_string(),
            bytes(op.bytes),
            op.errors.to_string(),
            amount(op.latency_ns as f64 / op.requests as f64, Unit::Nanoseconds),
        ]);
    }
    if rows.len() > 1 {
        for line in weir_sink::text::aligned(&rows).lines() {
            let _ = writeln!(page, "    {line}");
        }
    }
    page
}

fn consumers(consumers: &[ConsumerStatus], now_ns: i64) -> String {
    if consumers.is_empty() {
        return "\nno consumers\n".to_owned();
    }
    let head = [
        "listens",
        "for",
        "records",
        "lost",
        "not wanted",
        "in groups",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for consumer in consumers {
        rows.push(vec![
            consumer
                .pid
                .map_or("histograms".to_owned(), |pid| format!("pid {pid}")),
            age(consumer.since_ns, now_ns),
            consumer.records.to_string(),
            consumer.lost.to_string(),
            consumer.avoided.to_string(),
            consumer.grouped.to_string(),
        ]);
    }
    format!("\n{}", weir_sink::text::aligned(&rows))
}

fn amount(value: f64, unit: Unit) -> String {
    scaled(value, unit).expect("bytes and times have units of other sizes")
}

/// How long ago that was, to the second.
fn age(since_ns: i64, now_ns: i64) -> String {
    let seconds = Duration::from_nanos(u64::try_from(now_ns - since_ns).unwrap_or(0)).as_secs();
    match (
        seconds / 86_400,
        seconds / 3_600 % 24,
        seconds / 60 % 60,
        seconds % 60,
    ) {
        (0, 0, 0, s) => format!("{s} s"),
        (0, 0, m, s) => format!("{m} min {s} s"),
        (0, h, m, _) => format!("{h} h {m} min"),
        (d, h, ..) => format!("{d} d {h} h"),
    }
}

#[cfg(test)]
mod tests {
    use weir_tap::tapdisk::words::{DiskFigures, DiskWord, OpFigures};

    use super::*;

    #[test]
    fn a_page_lists_disks_and_consumers() {
        let status = StatusWord {
            program: "1.2.3".into(),
            pid: 17,
            since_ns: 0,
            disks: vec![DiskStatus {
                disk: DiskWord {
                    number: 0,
                    vm: Some("web".into()),
                    vdisk: Some("/dev/vda".into()),
                    pdisk: Some("/srv/we\nb.raw".into()),
                },
                queues: 2,
                figures: DiskFigures {
                    size_bytes: 1 << 30,
                    block_bytes: 512,
                    serial: "vol0".into(),
                    engine: "io_uring".into(),
                    sockets: vec!["/run/web.sock".into()],
                    in_flight: 3,
                    ops: vec![OpFigures {
                        op: "r".into(),
                        requests: 4,
                        bytes: 16384,
                        errors: 1,
                        latency_ns: 8_000_000,
                    }],
                    ..DiskFigures::default()
                },
            }],
            consumers: vec![ConsumerStatus {
                pid: Some(99),
                since_ns: 61_000_000_000,
                records: 3,
                avoided: 5,
                grouped: 7,
                lost: 1,
            }],
        };
        let page = page(&status, 3_671_000_000_000);
        for part in [
            "weir tapdisk 1.2.3, pid 17, for 1 h 1 min\n",
            "/dev/vda of web: /srv/we\\nb.raw\n",
            "1.0 GiB, blocks of 512 bytes, serial vol0, io_uring\n",
            "2 queues open, 3 in flight\n",
            "2.0 ms",
            "pid 99",
            "1 h 0 min",
        ] {
            assert!(page.contains(part), "{part:?} in\n{page}");
        }
    }
}
