//! The files of requests: what columns `file` and `inode` of `IO` need, beside the programs of
//! every other query, and the tables that these programs fill (`request_file.bpf.h`).

use std::path::Path;
use std::sync::atomic::Ordering;

use weir_model::Demand;
use weir_model::event::io_schema;

use super::devices::{Device, Devices};
use super::needs::Needs;
use super::programs::Probe;
use super::stream::paths::Paths;
use crate::shared::Shared;
use crate::{EventCount, RECORDING, TapError};

/// The programs with those for files, compiled.
pub static OBJECT: &[u8] = include_bytes!("tap_file.bpf.o");

/// Bytes of `struct causes`.
pub const CAUSES_BYTES: usize = 64;

/// The tracepoint of kernels whose structures the programs can read: 6.6 and newer.
const NEEDED: &str = "iomap_dio_rw_begin";

/// The file of each request, before the program that reports the request.
pub const FIND: Probe = Probe::new("on_find", "block_rq_issue", "column file is NULL");

/// Bios that file systems send to dm and md devices and to others without requests, and their
/// ends.
pub const STACKED: [Probe; 2] = [
    Probe::new(
        "on_tie",
        "block_bio_queue",
        "column file is NULL below dm and md devices",
    ),
    Probe::new(
        "on_untie",
        "block_bio_complete",
        "column file is NULL below dm and md devices",
    ),
];

/// The causes for which the file of a request is not known, as `enum untied`.
const CAUSES: [(usize, &str); 7] = [
    (1, "metadata"),
    (2, "no_file"),
    (3, "no_data"),
    (4, "no_file_system"),
    (5, "several_files"),
    (6, "table_full"),
    (7, "not_seen"),
];

/// The tables.
#[derive(Debug)]
pub struct FileTables {
    /// Paths, until they are moved out.
    pub paths: Option<Paths>,
    /// Requests without a file, by cause.
    pub causes: Shared,
}

impl FileTables {
    /// The requests without a file, by cause.
    pub fn counts(&self) -> impl Iterator<Item = EventCount> {
        let total = |at: usize| self.causes.words()[at].load(Ordering::Relaxed) as i64;
        let all = CAUSES.map(|(at, cause)| EventCount::of("untied", Some(cause), total(at)));
        all.into_iter().filter(|count| count.total != 0)
    }
}

/// Leaves columns `file` and `inode` out if this kernel lacks what they need: they are NULL in `IO`
/// for demands of all columns.
///
/// # Errors
/// If a demand names one of them; a recording has them only if files are to be recorded.
pub fn require(
    needs: &mut Needs,
    demands: &[Demand],
    has: &dyn Fn(&str) -> bool,
) -> Result<(), TapError> {
    if !needs.files() || has(NEEDED) {
        return Ok(());
    }
    let schema = io_schema();
    let columns = [schema.index("file"), schema.index("inode")];
    let is_named = |demand: &Demand| {
        let names = columns.iter().any(|at| demand.columns.contains(at));
        names && (demand.stream == RECORDING || demand.columns.len() < schema.len())
    };
    if demands.iter().any(is_named) {
        return Err(TapError::Unavailable {
            what: format!(
                "columns file and inode of IO need tracepoint {NEEDED}, which this kernel lacks"
            ),
            remedy: "run kernel 6.6 or newer, or a query without these columns".into(),
        });
    }
    needs.columns.file = false;
    needs.columns.inode = false;
    Ok(())
}

/// True if there is a device without requests, or whose bios may reach another one as clones.
pub fn any_stacked(devices: &Devices) -> bool {
    devices.iter().any(is_stacked)
}

fn is_stacked(device: &Device) -> bool {
    let name = Path::new(&device.sysfs).file_name().unwrap_or_default();
    device.bio_based || name.to_string_lossy().starts_with("dm-")
}

#[cfg(test)]
mod tests {
    use super::super::layout::FILE_RECORD_BYTES;
    use super::*;
    use weir_model::Predicate;

    fn demand(names: &[&str]) -> Demand {
        let schema = io_schema();
        Demand {
            stream: "IO".into(),
            columns: names.iter().map(|name| schema.index(name)).collect(),
            predicate: Predicate::all(),
            fold: None,
        }
    }

    #[test]
    fn an_older_kernel_refuses_a_query_that_names_the_column() {
        for (names, refused) in [(&["file"], true), (&["inode"], true), (&["bytes"], false)] {
            let demands = [demand(names)];
            let mut needs = Needs::of(&demands, false, true).unwrap();
            let result = require(&mut needs, &demands, &|_| false);
            assert_eq!(result.is_err(), refused, "{names:?}");
            if let Err(error) = result {
                assert!(error.to_string().contains("kernel 6.6"), "{error}");
            }
        }
    }

    #[test]
    fn an_older_kernel_has_nulls_in_all_columns() {
        let schema = io_schema();
        let names: Vec<&str> = schema.fields.iter().map(|f| f.name.as_str()).collect();
        let demands = [demand(&names)];
        let mut needs = Needs::of(&demands, false, true).unwrap();
        assert_eq!(needs.record_bytes(), FILE_RECORD_BYTES);
        require(&mut needs, &demands, &|_| false).unwrap();
        assert!(!needs.files() && needs.record_bytes() < FILE_RECORD_BYTES);
    }

    #[test]
    fn only_queries_of_the_columns_need_files() {
        let columns = ["ts", "bytes", "op", "latency", "pid"];
        let needs = Needs::of(&[demand(&columns)], false, true).unwrap();
        assert!(!needs.files());
        let needs = Needs::of(&[demand(&["inode", "bytes"])], false, true).unwrap();
        assert!(needs.files() && needs.issue && needs.track && !needs.columns.file);
    }
}
