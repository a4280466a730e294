//! Tables of `weir path` as JSON: an object per interval, times in nanoseconds.

use serde_json::{Map, Value as Json, json};
use weir_model::{Nanos, Symbol};
use weir_sink::time;

use super::row::PathRow;
use super::selection::LevelStream;
use super::table::{DiskLevels, PathTable};

/// The requests from `begin` to `end`, as one line.
pub fn json(begin: Nanos, end: Nanos, table: &PathTable) -> String {
    let stream = table.stream;
    let disks = table.disks().into_iter().map(|(disk, all)| {
        let dominant = all.dominant(stream);
        json!({
            "vm": text(disk.vm),
            "vdisk": text(disk.vdisk),
            stream.place: text(disk.place),
            "levels": levels(stream, all),
            "dominant": dominant.map(|(level, share)| json!({"level": level, "share": share})),
            stream.cause: all.causes,
        })
    });
    let slowest = table.slowest.iter().map(|row| request(stream, row));
    let all = json!({
        "begin": time::timestamp(begin),
        "end": time::timestamp(end),
        "disks": disks.collect::<Vec<Json>>(),
        "requests_omitted": table.beyond,
        "requests_late": table.late,
        "slowest": slowest.collect::<Vec<Json>>(),
    });
    format!("{all}\n")
}

fn text(symbol: Option<Symbol>) -> Option<&'static str> {
    symbol.map(Symbol::as_str)
}

fn levels(stream: &'static LevelStream, all: &DiskLevels) -> Json {
    let level = |(name, times, share): (&str, &super::table::Times, Option<f64>)| {
        let times = json!({
            "requests": times.count(),
            "share": share,
            "sum": times.sum_ns(),
            "mean": times.mean_ns(),
            "p50": times.quantile_ns(0.5),
            "p99": times.quantile_ns(0.99),
        });
        (name.to_owned(), times)
    };
    Json::Object(all.named(stream).map(level).collect())
}

fn request(stream: &LevelStream, row: &PathRow) -> Json {
    let mut request = Map::new();
    let mut put = |name: &str, value: Json| request.insert(name.to_owned(), value);
    put("ts", time::timestamp(row.ts).into());
    put("vm", text(row.disk.vm).into());
    put("vdisk", text(row.disk.vdisk).into());
    put(stream.place, text(row.disk.place).into());
    if let Some(identity) = &row.identity {
        for &column in stream.identity {
            let value = match column {
                "op" => text(identity.op).into(),
                "bytes" => identity.bytes.into(),
                "path" => text(identity.path).into(),
                "offset" => identity.offset.into(),
                "sector" => identity.sector.into(),
                "flags" => text(identity.flags).into(),
                "pid" => identity.pid.into(),
                "comm" => text(identity.comm).into(),
                _ => identity.number.into(),
            };
            put(column, value);
        }
    }
    put(stream.cause, text(row.cause).into());
    put("latency", row.latency_ns.into());
    for (level, time_ns) in stream.levels.iter().zip(row.levels_ns) {
        put(level, time_ns.into());
    }
    Json::Object(request)
}
