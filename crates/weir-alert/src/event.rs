//! [`AlertEvent`]: a change of the state of an instance, as text and as JSON.

use std::collections::BTreeMap;

use ring::digest;
use serde_json::{Value as Json, json};
use weir_act::limit::Limit;
use weir_act::policy::ActRequest;
use weir_model::{Field, Type, Value};
use weir_query::alert::{AlertAct, AlertRule, template_names};
use weir_sink::{number, time};

use crate::machine::{AlertState, Transition};

/// The version of the JSON form; it increases when a member changes its meaning or leaves.
pub const VERSION: u32 = 1;

/// Bytes of the digest that identifies an event.
const ID_BYTES: usize = 12;

/// The values of the labels of an instance, in the order of the rule; NULL is `None`.
pub type AlertKey = Vec<Option<String>>;

/// A change of the state of an instance.
#[derive(Clone, Debug, PartialEq)]
pub struct AlertEvent {
    /// When, in nanoseconds since the Unix epoch.
    pub at: i64,
    /// The name of the alert.
    pub alert: String,
    /// Names and values of the labels; NULL is `None`.
    pub labels: Vec<(String, Option<String>)>,
    /// The state before.
    pub from: AlertState,
    /// The state now.
    pub to: AlertState,
    /// When the instance fired last, if it did.
    pub fired_at: Option<i64>,
    /// How often it fired again in the last hour.
    pub flaps: usize,
    /// The columns of the alert's query. Without a row, those of the last one.
    pub values: Vec<(Field, Value)>,
    /// Names and texts of the annotations.
    pub annotations: Vec<(String, String)>,
    /// What is requested while the instance fires.
    pub action: Option<ActRequest>,
}

impl AlertEvent {
    /// The event of a transition of an instance of `rule` with that row of its plan.
    pub fn new(
        rule: &AlertRule,
        transition: Transition<AlertKey>,
        row: Option<&[Value]>,
    ) -> AlertEvent {
        let names = rule.labels.iter().map(|(name, _)| name.clone());
        let columns = rule.columns.iter().cloned();
        let values: Vec<(Field, Value)> = match row {
            Some(row) => columns.zip(row.iter().cloned()).collect(),
            None => Vec::new(),
        };
        let annotation = |annotation: &weir_query::alert::Annotation| {
            let value = row.map_or(Value::Null, |row| row[annotation.column].clone());
            let text = match annotation.is_template {
                true => filled(&value.to_string(), &values),
                false => {
                    let field = &rule.plan.schema.fields[annotation.column];
                    readable(field, &value)
                }
            };
            (annotation.name.clone(), text)
        };
        // An instance that fired before its data were missing fires no second time.
        let is_first = transition.fired_at == Some(transition.at);
        let fires = transition.to == AlertState::Firing
            && (transition.from != AlertState::Unknown || is_first);
        let act = rule.act.as_ref().filter(|_| fires).zip(row);
        let mut event = AlertEvent {
            at: transition.at,
            alert: rule.name.clone(),
            labels: names.zip(transition.key).collect(),
            from: transition.from,
            to: transition.to,
            fired_at: transition.fired_at,
            flaps: transition.flaps,
            annotations: rule.annotations.iter().map(annotation).collect(),
            values,
            action: None,
        };
        event.action = act.map(|(act, row)| action(act, row, event.instance()));
        event
    }

    /// The values of the labels, which identify the instance.
    pub fn key(&self) -> AlertKey {
        self.labels.iter().map(|(_, value)| value.clone()).collect()
    }

    /// The label with this name.
    pub fn label(&self, name: &str) -> Option<&str> {
        let mut labels = self.labels.iter();
        let (_, value) = labels.find(|(label, _)| label.eq_ignore_ascii_case(name))?;
        value.as_deref()
    }

    /// Whether it is of a firing: not that an instance is pending, or was only that.
    pub fn is_reported(&self) -> bool {
        match self.to {
            AlertState::Pending => false,
            AlertState::Firing => true,
            AlertState::Clear | AlertState::Unknown => {
                self.from != AlertState::Pending && self.fired_at.is_some()
            }
        }
    }

    /// Identifies the alert, its labels, its firing, and the state now: equal for the same change
    /// that is computed again.
    pub fn id(&self) -> String {
        let mut text = format!("{}\n{:?}\n", self.instance(), self.fired_at);
        if self.fired_at.is_none() || self.to == AlertState::Pending {
            text += &format!("{}\n", self.at);
        }
        text += self.to.name();
        fingerprint(&text)
    }

    /// The alert with its labels: `slow_disk{vdisk="vda"}`, as Prometheus writes it. A label that
    /// is NULL is left out.
    pub fn instance(&self) -> String {
        instance(&self.alert, &self.labels)
    }

    /// The versioned form: one object.
    pub fn json(&self) -> Json {
        let value = |(field, value): &(Field, Value)| {
            let value = match value {
                Value::Int(at) if field.ty == Type::Time => json!(time::timestamp(*at)),
                Value::Tally(_) | Value::Bytes(_) => json!(value.to_string()),
                value => json!(value),
            };
            (field.name.clone(), value)
        };
        let labels: BTreeMap<&String, &Option<String>> = self
            .labels
            .iter()
            .map(|(name, value)| (name, value))
            .collect();
        let annotations: BTreeMap<&String, &String> = self
            .annotations
            .iter()
            .map(|(name, text)| (name, text))
            .collect();
        let mut event = json!({
            "version": VERSION,
            "id": self.id(),
            "at": time::timestamp(self.at),
            "alert": self.alert,
            "labels": labels,
            "from": self.from,
            "state": self.to,
            "fired_at": self.fired_at.map(time::timestamp),
            "flaps": self.flaps,
            "annotations": annotations,
            "values": self.values.iter().map(value).collect::<serde_json::Map<_, _>>(),
        });
        if let Some(action) = &self.action {
            event["action"] = json!(action);
        }
        event
    }

    /// The event in a line, after its time: `slow{vdisk="vda"} pending -> firing: text`. Without
    /// annotations, the values of the row.
    pub fn line(&self) -> String {
        let shown = |(name, value): (&String, String)| match name.as_str() {
            "summary" => value,
            name => format!("{name}: {value}"),
        };
        let details: Vec<String> = match self.annotations.is_empty() {
            true => {
                let values = self.values.iter();
                let values = values.map(|(field, v)| (&field.name, readable(field, v)));
                values
                    .map(|(name, value)| format!("{name} = {value}"))
                    .collect()
            }
            false => {
                let texts = self.annotations.iter();
                texts
                    .map(|(name, text)| shown((name, text.clone())))
                    .collect()
            }
        };
        let details = match details.is_empty() || self.to == AlertState::Unknown {
            true => String::new(),
            false => format!(": {}", details.join(", ")),
        };
        let flaps = match self.flaps {
            0 => String::new(),
            1 => " (fired again once in the last hour)".to_owned(),
            flaps => format!(" (fired again {flaps} times in the last hour)"),
        };
        let (from, to) = (self.from.name(), self.to.name());
        format!("{} {from} -> {to}{details}{flaps}", self.instance())
    }
}

/// An alert with labels, as Prometheus writes it. A label that is NULL is left out.
pub fn instance(alert: &str, labels: &[(String, Option<String>)]) -> String {
    let present = labels.iter();
    let present = present.filter_map(|(name, value)| Some((name, value.as_ref()?)));
    let labels: Vec<String> = present.map(|(name, v)| format!("{name}={v:?}")).collect();
    format!("{alert}{{{}}}", labels.join(", "))
}

/// The request of an action for a row.
fn action(act: &AlertAct, row: &[Value], instance: String) -> ActRequest {
    let value = |name: &str| {
        let (_, column) = act.items.iter().find(|(item, _)| item == name)?;
        Some(&row[*column])
    };
    let text = |name: &str| match value(name)? {
        Value::Null => None,
        value => Some(value.to_string()),
    };
    let number = |name: &str| match value(name)? {
        Value::Int(n) => Some((*n).max(0).unsigned_abs()),
        Value::Float(x) => Some(x.max(0.0).round() as u64),
        _ => None,
    };
    ActRequest {
        instance,
        vm: text("vm").unwrap_or_default(),
        disk: text("disk"),
        limit: Limit {
            iops: number("iops"),
            bytes: number("bytes_per_second"),
            weight: number("weight"),
        },
        hold_ns: act.hold_ns,
        cooldown_ns: act.cooldown_ns,
    }
}

/// A template with the values of its columns, in readable units.
fn filled(template: &str, values: &[(Field, Value)]) -> String {
    let mut text = template.to_owned();
    for name in template_names(template) {
        let is_named = |(field, _): &&(Field, Value)| field.name.eq_ignore_ascii_case(&name);
        if let Some((field, value)) = values.iter().find(is_named) {
            text = replaced(&text, &name, &readable(field, value));
        }
    }
    text
}

/// `{name}` replaced, with spaces inside the braces or without.
fn replaced(text: &str, name: &str, value: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        out += before;
        match after.split_once('}') {
            Some((inside, behind)) if inside.trim() == name => {
                out += value;
                rest = behind;
            }
            _ => {
                out.push('{');
                rest = after;
            }
        }
    }
    out + rest
}

/// A value with its unit, as a table shows it.
pub fn readable(field: &Field, value: &Value) -> String {
    let scaled = match value {
        Value::Int(at) if field.ty == Type::Time => Some(time::readable(*at)),
        Value::Int(x) => number::scaled(*x as f64, field.unit),
        Value::Float(x) => {
            Some(number::scaled(*x, field.unit).unwrap_or_else(|| number::general(*x)))
        }
        _ => None,
    };
    scaled.unwrap_or_else(|| value.to_string())
}

/// The start of the SHA-256 of a text, in hexadecimal.
pub fn fingerprint(text: &str) -> String {
    let hash = digest::digest(&digest::SHA256, text.as_bytes());
    let bytes = hash.as_ref().iter().take(ID_BYTES);
    bytes.map(|byte| format!("{byte:02x}")).collect()
}

/// The text of a label.
pub fn label(ty: Type, value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::Int(at) if ty == Type::Time => Some(time::timestamp(*at)),
        value => Some(value.to_string()),
    }
}
