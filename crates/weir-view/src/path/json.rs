//! Tables of `weir path` as JSON: an object per interval, times in nanoseconds.

use serde_json::{Map, Value as Json, json};
use weir_model::{Nanos, Symbol};
use weir_sink::time;

use super::row::PathRow;
use super::selection::LEVELS;
use super::table::{DiskLevels, PathTable};

/// The requests from `begin` to `end`, as one line.
pub fn json(begin: Nanos, end: Nanos, table: &PathTable) -> String {
    let disks = table.disks().into_iter().map(|(disk, all)| {
        json!({
            "vm": text(disk.vm),
            "vdisk": text(disk.vdisk),
            "pdisk": text(disk.pdisk),
            "levels": levels(all),
            "dominant": all.dominant().map(|(level, share)| json!({"level": level, "share": share})),
            "untied": all.untied,
        })
    });
    let all = json!({
        "begin": time::timestamp(begin),
        "end": time::timestamp(end),
        "disks": disks.collect::<Vec<Json>>(),
        "requests_omitted": table.beyond,
        "slowest": table.slowest.iter().map(request).collect::<Vec<Json>>(),
    });
    format!("{all}\n")
}

fn text(symbol: Option<Symbol>) -> Option<&'static str> {
    symbol.map(Symbol::as_str)
}

fn levels(all: &DiskLevels) -> Json {
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
    Json::Object(all.named().map(level).collect())
}

fn request(row: &PathRow) -> Json {
    let mut request = Map::new();
    let mut put = |name: &str, value: Json| request.insert(name.to_owned(), value);
    put("ts", time::timestamp(row.ts).into());
    put("vm", text(row.disk.vm).into());
    put("vdisk", text(row.disk.vdisk).into());
    put("pdisk", text(row.disk.pdisk).into());
    if let Some(identity) = &row.identity {
        put("op", text(identity.op).into());
        put("bytes", identity.bytes.into());
        put("path", text(identity.path).into());
        put("offset", identity.offset.into());
        put("flags", text(identity.flags).into());
        put("pid", identity.pid.into());
        put("comm", text(identity.comm).into());
        put("user_data", identity.user_data.into());
    }
    put("untied", text(row.untied).into());
    put("latency", row.latency_ns.into());
    for (level, time_ns) in LEVELS.iter().zip(row.levels_ns) {
        put(level, time_ns.into());
    }
    Json::Object(request)
}
