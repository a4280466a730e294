//! The catalog: the streams and relations, and their columns.

use std::sync::Arc;

use crate::alert::{ActionStep, AlertChange, AlertInstance, LeaseRow};
use crate::correlation::{CORRELATIONS, correlations_schema};
use crate::event::{io_schema, iostream_schema};
use crate::guest::{GUEST_IO, guestio_schema};
use crate::host::Host;
use crate::inventory::{BlockDevice, Disk, Row, Vm};
use crate::qemu::{blocklatency_schema, blockstats_schema};
use crate::{Field, Fold, Schema, Type, Unit};
use serde::{Deserialize, Serialize};

/// Stream or relation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Shape {
    /// Rows with a timestamp.
    Stream,
    /// Rows that are inserted and retracted.
    Relation,
}

impl Shape {
    /// Its word.
    pub fn name(self) -> &'static str {
        match self {
            Shape::Stream => "stream",
            Shape::Relation => "relation",
        }
    }
}

/// A named source of rows. Another process takes what is not serialised from its own catalog.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Declaration {
    /// Its name; names are compared without regard to case.
    pub name: String,
    /// Stream or relation.
    pub shape: Shape,
    /// Its columns.
    pub schema: Arc<Schema>,
    /// What `*` means, by name; `None` means every column by its plain name. The thesis's scripts
    /// expect its ten columns.
    #[serde(skip)]
    pub star: Option<Vec<String>>,
    /// Its description, in a sentence.
    #[serde(skip)]
    pub doc: String,
    /// The groups that it may deliver in place of rows, as decided by a planner.
    #[serde(skip)]
    pub fold: Option<Arc<Fold>>,
}

impl Declaration {
    /// A source without further properties; `*` means all of its columns.
    pub fn new(
        name: impl Into<String>,
        shape: Shape,
        schema: impl Into<Arc<Schema>>,
    ) -> Declaration {
        Declaration {
            name: name.into(),
            shape,
            schema: schema.into(),
            star: None,
            doc: String::new(),
            fold: None,
        }
    }

    /// Whether it is a stream or a relation as `other`, with columns of the same names, types and
    /// units.
    pub fn has_columns_of(&self, other: &Declaration) -> bool {
        fn columns(d: &Declaration) -> impl Iterator<Item = (&str, Type, Unit)> {
            let fields = d.schema.fields.iter();
            fields.map(|f| (f.name.as_str(), f.ty, f.unit))
        }
        self.shape == other.shape && columns(self).eq(columns(other))
    }
}

/// A view that is stored in a library, so that later queries can name it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct StoredView {
    /// The name.
    pub name: String,
    /// The statement that defines it: `CREATE VIEW name AS ..`.
    pub text: String,
}

/// The sources that queries can name.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    /// The declarations, in the order they are listed.
    pub declarations: Vec<Declaration>,
    /// The stored views. A declaration of the same name has precedence.
    pub views: Vec<StoredView>,
}

/// The columns of `IOstream` that the thesis's queries see (Table 3.1, those of a filter instance).
pub const THESIS_COLUMNS: [&str; 10] = [
    "BlktapTS", "Type", "IOOp", "ReqId", "Sector", "Size", "VMName", "VDisk", "PDisk", "FtrTS",
];

/// The sources of the monitor itself, not of its agents.
pub const MONITOR_SOURCES: [&str; 5] = [
    Host::RELATION,
    "weir",
    AlertChange::RELATION,
    AlertInstance::RELATION,
    GUEST_IO,
];

impl Catalog {
    /// The built-in sources.
    pub fn builtin() -> Catalog {
        let source = |name: &str, shape, schema: Schema, doc: &str| Declaration {
            doc: doc.into(),
            ..Declaration::new(name, shape, schema)
        };
        let stream = |name, schema, doc| source(name, Shape::Stream, schema, doc);
        let relation = |name, schema, doc| source(name, Shape::Relation, schema, doc);
        Catalog {
            declarations: vec![
                stream(
                    "IO",
                    io_schema(),
                    "one row per completed request; the stream for most queries",
                ),
                stream(
                    "IOstream",
                    iostream_schema(),
                    "one row per event: each request and each response (thesis, Table 3.1)",
                ),
                stream(
                    "weir",
                    weir_schema(),
                    "weir's own counters: events received, sent and lost, by place and cause",
                ),
                stream(
                    "blockstats",
                    blockstats_schema(),
                    "QEMU's counters of its VMs' disks, polled every second without affecting \
                     the VMs: one row per disk and operation",
                ),
                stream(
                    "blocklatency",
                    blocklatency_schema(),
                    "QEMU's latency histograms of its VMs' disks, polled every second: one row \
                     per disk, operation and non-empty bin",
                ),
                stream(
                    GUEST_IO,
                    guestio_schema(),
                    "one row per request of a guest with an agent, tied to the request of its \
                     virtual disk; only at the monitor of a fleet",
                ),
                relation(
                    Vm::RELATION,
                    Vm::schema(),
                    "the VMs and containers of the host, and processes declared to be VMs",
                ),
                relation(
                    Disk::RELATION,
                    Disk::schema(),
                    "the virtual disks of the VMs, with their locations on the host",
                ),
                relation(
                    BlockDevice::RELATION,
                    BlockDevice::schema(),
                    "the block devices of the host, with the devices below each",
                ),
                relation(
                    Host::RELATION,
                    Host::schema(),
                    "the hosts of a fleet: their agents, watermarks, clock offsets and losses; \
                     empty without a fleet",
                ),
                stream(
                    AlertChange::RELATION,
                    AlertChange::schema(),
                    "the changes of the states of alerts, as `weir alert watch --state` and the \
                     monitor report them",
                ),
                relation(
                    AlertInstance::RELATION,
                    AlertInstance::schema(),
                    "the instances of alerts that are not clear",
                ),
                stream(
                    ActionStep::RELATION,
                    ActionStep::schema(),
                    "the steps of actions on disks: what was proposed, applied and undone",
                ),
                relation(
                    LeaseRow::RELATION,
                    LeaseRow::schema(),
                    "the leases of actions that have not ended",
                ),
                relation(
                    CORRELATIONS,
                    correlations_schema(),
                    "pairs of disks whose load or latency correlates, computed from IO: over the \
                     last 60 s in steps of 1 s, or as in [range 5 min slide 1 s]",
                ),
            ],
            ..Catalog::default()
        }
    }

    /// The built-in sources for a script in STREAM's format: `IOstream` has the thesis's ten
    /// columns.
    pub fn thesis() -> Catalog {
        let mut catalog = Catalog::builtin();
        for declaration in &mut catalog.declarations {
            if declaration.name == "IOstream" {
                declaration.star = Some(THESIS_COLUMNS.map(String::from).to_vec());
            }
        }
        catalog
    }

    /// The source with that name, without regard to case.
    pub fn find(&self, name: &str) -> Option<&Declaration> {
        self.declarations
            .iter()
            .find(|d| d.name.eq_ignore_ascii_case(name))
    }

    /// The stored view with that name, without regard to case.
    pub fn view(&self, name: &str) -> Option<&StoredView> {
        let mut views = self.views.iter();
        views.find(|view| view.name.eq_ignore_ascii_case(name))
    }
}

/// The schema of stream `weir`: one row per counter that changed.
pub fn weir_schema() -> Schema {
    Schema::new(vec![
        Field::new("ts", Type::Time)
            .unit(Unit::Nanoseconds)
            .doc("the time at which the counter was read"),
        Field::new("place", Type::Text).doc(
            "the component that counts: tap, engine, sink, a \
                    query",
        ),
        Field::new("counter", Type::Text)
            .doc("what is counted: events_in, events_out, events_lost, bytes, ..."),
        Field::new("cause", Type::Text).nullable().doc(
            "the cause of a loss: ring_full, slow_consumer, recursion, not_run, table_full, \
                  late, malformed",
        ),
        Field::new("device", Type::Text)
            .nullable()
            .doc("the device of the counter"),
        Field::new("value", Type::Int).doc("the count since the last row of this counter"),
        Field::new("total", Type::Int).doc("the count since the start"),
        Field::new("host", Type::Text)
            .nullable()
            .doc("the host of the counter in a fleet; otherwise NULL"),
    ])
}
