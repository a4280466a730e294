//! The streams of a host that are not in the catalog, such as those of probes.

use super::{RECORDING, StreamCapabilities};
use crate::{Declaration, Shape, Type};

/// Maximum number of streams of a host that are not in the catalog.
pub const OWN_STREAMS_MAX: usize = 128;

/// Maximum size of the name of such a stream, or of a column, in bytes, and of columns.
const OWN_NAME_BYTES_MAX: usize = 64;
const OWN_COLUMNS_MAX: usize = 64;

impl StreamCapabilities {
    /// Whether it is a stream that queries can name, as a host describes one that is not in the
    /// catalog: its first column is the time, and no two have the same name.
    pub(super) fn is_of_host(&self) -> bool {
        let Declaration {
            name,
            shape,
            schema,
            ..
        } = &self.declaration;
        let is_name = |name: &str| {
            let mut bytes = name.bytes();
            let first = bytes
                .next()
                .is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
            first
                && name.len() <= OWN_NAME_BYTES_MAX
                && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_')
        };
        let fields = &schema.fields;
        let mut names: Vec<String> = fields.iter().map(|f| f.name.to_ascii_lowercase()).collect();
        names.sort_unstable();
        names.dedup();
        name != RECORDING
            && *shape == Shape::Stream
            && self.paired.is_err()
            && (1..=OWN_COLUMNS_MAX).contains(&fields.len())
            && fields.len() == self.columns.len()
            && fields.len() == names.len()
            && fields
                .first()
                .is_some_and(|f| f.name == "ts" && f.ty == Type::Time)
            && is_name(name)
            && fields.iter().all(|f| is_name(&f.name))
            && self.columns.iter().all(|column| column.product.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Capabilities, ColumnCapabilities, Rate, SelectionLimits};
    use super::*;
    use crate::{Catalog, Field, Schema};

    #[test]
    fn streams_that_only_a_host_has_are_kept_if_queries_can_name_them() {
        let catalog = Catalog::builtin();
        let stream = |name: &str, columns: &[(&str, Type)]| {
            let fields = columns.iter().map(|(name, ty)| Field::new(*name, *ty));
            let schema = Schema::new(fields.collect());
            StreamCapabilities {
                columns: vec![ColumnCapabilities::default(); schema.len()],
                declaration: Declaration::new(name, Shape::Stream, schema),
                limits: SelectionLimits::LEAST,
                groups: Err("rows".into()),
                paired: Err("rows".into()),
                rate: Rate::Events,
            }
        };
        let kept = |streams: Vec<StreamCapabilities>| {
            let all = Capabilities { streams };
            let all = Capabilities::decode(&all.encode(), &catalog).unwrap();
            let names = all.streams.into_iter().map(|s| s.declaration.name);
            names.collect::<Vec<String>>()
        };
        let ts = ("ts", Type::Time);
        let good = stream("run_queue", &[ts, ("vm", Type::Text)]);
        assert_eq!(kept(vec![good.clone(), good.clone()]), ["run_queue"]);
        for bad in [
            stream("a b", &[ts]),
            stream("x\u{1b}[2J", &[ts]),
            stream("", &[ts]),
            stream(&"x".repeat(65), &[ts]),
            stream("x", &[("vm", Type::Text)]),
            stream("x", &[ts, ("a\nb", Type::Int)]),
            stream("x", &[ts, ("vm", Type::Text), ("VM", Type::Int)]),
        ] {
            assert!(kept(vec![bad]).is_empty());
        }
        let mut short = good;
        short.columns.pop();
        assert!(kept(vec![short]).is_empty());
        let many = (0..OWN_STREAMS_MAX + 5).map(|n| stream(&format!("s{n}"), &[ts]));
        assert_eq!(kept(many.collect()).len(), OWN_STREAMS_MAX);
    }
}
