//! Alerts and actions as rows: streams `alerts` and `actions`, relations `alert_states` and
//! `leases`.

use crate::inventory::{InventoryColumn, Row};
use crate::{Batch, Column, Field, Nanos, Symbol, Type, Unit, Value};

/// A change of the state of an instance of an alert: a row of stream `alerts`.
#[derive(Clone, Debug, PartialEq)]
pub struct AlertChange {
    /// When it was reported.
    pub ts: Nanos,
    /// The state before.
    pub from_state: Option<Symbol>,
    /// The instance, in its state after the change.
    pub instance: AlertInstance,
}

/// An instance of an alert in its present state: a row of relation `alert_states`.
#[derive(Clone, Debug, PartialEq)]
pub struct AlertInstance {
    /// The alert.
    pub alert: Option<Symbol>,
    /// The alert with its labels: `slow_disk{vdisk="vda"}`.
    pub instance: Option<Symbol>,
    /// `pending`, `firing`, `clear` or `unknown`.
    pub state: Option<Symbol>,
    /// When it came into the state, by the time of the events.
    pub at: Option<Nanos>,
    /// When it fired last.
    pub fired_at: Option<Nanos>,
    /// How often it fired again in the last hour.
    pub flaps: Option<i64>,
    /// The label `severity`.
    pub severity: Option<Symbol>,
    /// The annotation `summary`.
    pub summary: Option<Symbol>,
    /// The label `vm`.
    pub vm: Option<Symbol>,
    /// The label `vdisk`.
    pub vdisk: Option<Symbol>,
    /// The label `pdisk`.
    pub pdisk: Option<Symbol>,
    /// Its messages are not sent: by a silence, or by another alert.
    pub silenced: Option<bool>,
    /// The label `host`.
    pub host: Option<Symbol>,
}

/// A step of an action on a disk: a row of stream `actions`.
#[derive(Clone, Debug, PartialEq)]
pub struct ActionStep {
    /// When it was reported.
    pub ts: Nanos,
    /// `proposed`, `refused`, `announced`, `applied`, `improved` or `ended`.
    pub step: Option<Symbol>,
    /// Why it ended or was refused.
    pub cause: Option<Symbol>,
    /// What became of the setting.
    pub outcome: Option<Symbol>,
    /// What the witness of the alert showed.
    pub effect: Option<Symbol>,
    /// The lease.
    pub lease: LeaseRow,
}

/// A lease of a setting: a row of relation `leases`.
#[derive(Clone, Debug, PartialEq)]
pub struct LeaseRow {
    /// Its name.
    pub id: Option<Symbol>,
    /// The instance of an alert that requested it.
    pub alert: Option<Symbol>,
    /// The VM.
    pub vm: Option<Symbol>,
    /// The disk or device.
    pub disk: Option<Symbol>,
    /// The knob.
    pub knob: Option<Symbol>,
    /// The setting before.
    pub before: Option<Symbol>,
    /// The setting meanwhile.
    pub setting: Option<Symbol>,
    /// When it ends at the latest.
    pub ends: Option<Nanos>,
}

fn text(value: Option<Symbol>) -> Value {
    value.map_or(Value::Null, Value::Text)
}

fn int(value: Option<i64>) -> Value {
    value.map_or(Value::Null, Value::Int)
}

fn column(name: &str, ty: Type, doc: &str) -> Field {
    let field = Field::new(name, ty).doc(doc).nullable();
    match ty {
        Type::Time => field.unit(Unit::Nanoseconds),
        _ => field,
    }
}

/// The time at which a row of a stream was reported.
fn reported_at() -> Field {
    Field::new("ts", Type::Time)
        .unit(Unit::Nanoseconds)
        .doc("the time at which it was reported")
}

impl Row for AlertInstance {
    const RELATION: &'static str = "alert_states";

    fn host(&self, here: Option<Symbol>) -> Option<Symbol> {
        self.host.or(here)
    }

    fn columns() -> Vec<InventoryColumn<AlertInstance>> {
        use Type::{Bool, Int, Text, Time};
        vec![
            (column("alert", Text, "the alert"), |r| text(r.alert)),
            (column("instance", Text, "the alert with its labels"), |r| {
                text(r.instance)
            }),
            (
                column("state", Text, "pending, firing, clear or unknown"),
                |r| text(r.state),
            ),
            (
                column("at", Time, "the time of its last change, by the events"),
                |r| int(r.at),
            ),
            (column("fired_at", Time, "when it fired last"), |r| {
                int(r.fired_at)
            }),
            (
                column("flaps", Int, "how often it fired again in the last hour"),
                |r| int(r.flaps),
            ),
            (column("severity", Text, "the label severity"), |r| {
                text(r.severity)
            }),
            (column("summary", Text, "the annotation summary"), |r| {
                text(r.summary)
            }),
            (column("vm", Text, "the label vm"), |r| text(r.vm)),
            (column("vdisk", Text, "the label vdisk"), |r| text(r.vdisk)),
            (column("pdisk", Text, "the label pdisk"), |r| text(r.pdisk)),
            (
                column(
                    "silenced",
                    Bool,
                    "true if a silence or another alert withholds its messages",
                ),
                |r| r.silenced.map_or(Value::Null, Value::Bool),
            ),
        ]
    }
}

impl Row for AlertChange {
    const RELATION: &'static str = "alerts";

    fn host(&self, here: Option<Symbol>) -> Option<Symbol> {
        self.instance.host(here)
    }

    fn columns() -> Vec<InventoryColumn<AlertChange>> {
        use Type::{Bool, Int, Text, Time};
        vec![
            (reported_at(), |r| Value::Int(r.ts)),
            (
                column("at", Time, "the time of the change, by the events"),
                |r| int(r.instance.at),
            ),
            (column("alert", Text, "the alert"), |r| {
                text(r.instance.alert)
            }),
            (column("instance", Text, "the alert with its labels"), |r| {
                text(r.instance.instance)
            }),
            (column("from_state", Text, "the state before"), |r| {
                text(r.from_state)
            }),
            (
                column(
                    "state",
                    Text,
                    "the state now: pending, firing, clear or unknown",
                ),
                |r| text(r.instance.state),
            ),
            (column("fired_at", Time, "when it fired last"), |r| {
                int(r.instance.fired_at)
            }),
            (
                column("flaps", Int, "how often it fired again in the last hour"),
                |r| int(r.instance.flaps),
            ),
            (column("severity", Text, "the label severity"), |r| {
                text(r.instance.severity)
            }),
            (column("summary", Text, "the annotation summary"), |r| {
                text(r.instance.summary)
            }),
            (column("vm", Text, "the label vm"), |r| text(r.instance.vm)),
            (column("vdisk", Text, "the label vdisk"), |r| {
                text(r.instance.vdisk)
            }),
            (column("pdisk", Text, "the label pdisk"), |r| {
                text(r.instance.pdisk)
            }),
            (
                column(
                    "silenced",
                    Bool,
                    "true if a silence or another alert withholds its messages",
                ),
                |r| r.instance.silenced.map_or(Value::Null, Value::Bool),
            ),
        ]
    }
}

impl Row for LeaseRow {
    const RELATION: &'static str = "leases";

    fn columns() -> Vec<InventoryColumn<LeaseRow>> {
        use Type::{Text, Time};
        vec![
            (column("id", Text, "the name of the lease"), |r| text(r.id)),
            (
                column("alert", Text, "the instance of an alert that requested it"),
                |r| text(r.alert),
            ),
            (column("vm", Text, "the VM"), |r| text(r.vm)),
            (
                column("disk", Text, "the disk in the VM, or the device"),
                |r| text(r.disk),
            ),
            (column("knob", Text, "what is set"), |r| text(r.knob)),
            (column("before", Text, "the setting before"), |r| {
                text(r.before)
            }),
            (column("setting", Text, "the setting of the lease"), |r| {
                text(r.setting)
            }),
            (column("ends", Time, "when it ends at the latest"), |r| {
                int(r.ends)
            }),
        ]
    }
}

impl Row for ActionStep {
    const RELATION: &'static str = "actions";

    fn columns() -> Vec<InventoryColumn<ActionStep>> {
        use Type::{Text, Time};
        vec![
            (reported_at(), |r| Value::Int(r.ts)),
            (
                column(
                    "step",
                    Text,
                    "proposed, refused, announced, applied, improved or ended",
                ),
                |r| text(r.step),
            ),
            (column("id", Text, "the lease"), |r| text(r.lease.id)),
            (
                column("alert", Text, "the instance of an alert that requested it"),
                |r| text(r.lease.alert),
            ),
            (column("vm", Text, "the VM"), |r| text(r.lease.vm)),
            (
                column("disk", Text, "the disk in the VM, or the device"),
                |r| text(r.lease.disk),
            ),
            (column("knob", Text, "what is set"), |r| text(r.lease.knob)),
            (column("before", Text, "the setting before"), |r| {
                text(r.lease.before)
            }),
            (column("setting", Text, "the setting of the lease"), |r| {
                text(r.lease.setting)
            }),
            (column("ends", Time, "when it ends at the latest"), |r| {
                int(r.lease.ends)
            }),
            (column("cause", Text, "why it ended or was refused"), |r| {
                text(r.cause)
            }),
            (column("outcome", Text, "what became of the setting"), |r| {
                text(r.outcome)
            }),
            (
                column("effect", Text, "what the witness of the alert showed"),
                |r| text(r.effect),
            ),
        ]
    }
}

/// Rows of a stream reported by `host`, at instant `ts`.
pub fn reported<R: Row>(ts: Nanos, host: Option<Symbol>, rows: &[R]) -> Batch {
    let column =
        |(field, get): InventoryColumn<R>| Column::from_values(field.ty, rows.iter().map(get));
    let mut columns: Vec<Column> = R::columns().into_iter().map(column).collect();
    let hosts = rows.iter().map(|row| text(row.host(host)));
    columns.push(Column::from_values(Type::Text, hosts));
    Batch::stream(vec![ts; rows.len()], columns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_values_of_its_columns() {
        let symbol = |text| Some(Symbol::new(text));
        let instance = AlertInstance {
            alert: symbol("slow"),
            instance: symbol("slow{vm=\"a\"}"),
            state: symbol("firing"),
            at: Some(5),
            fired_at: Some(5),
            flaps: Some(0),
            severity: None,
            summary: None,
            vm: symbol("a"),
            vdisk: None,
            pdisk: None,
            silenced: Some(false),
            host: None,
        };
        let change = AlertChange {
            ts: 7,
            from_state: symbol("pending"),
            instance,
        };
        let batch = reported(9, symbol("h"), &[change]);
        let schema = AlertChange::schema();
        let value = |name: &str| batch.columns[schema.index(name)].value(0);
        assert_eq!(batch.ts[..], [9]);
        assert_eq!((value("ts"), value("at")), (Value::Int(7), Value::Int(5)));
        assert_eq!(
            (value("vm"), value("host"), value("vdisk")),
            (Value::text("a"), Value::text("h"), Value::Null)
        );
        assert_eq!(value("silenced"), Value::Bool(false));
    }
}
