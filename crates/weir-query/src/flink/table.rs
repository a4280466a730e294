//! [`FlinkTable`]: the table of a stream.

use weir_model::{Declaration, Field, Shape, Type};

use super::{Untranslatable, quoted, refuse, text};

/// The column with the instant of a row.
const INSTANT: &str = "ts";

/// How long after the latest row Flink waits for earlier ones.
const WATERMARK: &str = "INTERVAL '1' SECOND";

/// The table of a stream, with the columns that a query reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlinkTable {
    /// The name of the stream.
    pub stream: String,
    /// Names and types, in the order of the stream; the first one is the instant, `ts`.
    pub columns: Vec<(String, Type)>,
    /// The column with Flink's event time.
    event_time: String,
}

impl FlinkTable {
    /// The table of a stream, with the columns at these positions.
    pub(super) fn new(
        declaration: &Declaration,
        columns: &[usize],
    ) -> Result<FlinkTable, Untranslatable> {
        let name = &declaration.name;
        if declaration.shape == Shape::Relation {
            return refuse(format!(
                "{name} is a relation; only streams become tables of Flink"
            ));
        }
        let fields = &declaration.schema.fields;
        let is_other = |f: &Field| f.name.eq_ignore_ascii_case(INSTANT) && f.ty != Type::Time;
        if fields.iter().any(is_other) {
            return refuse(format!("column `{INSTANT}` of {name} is not a timestamp"));
        }
        let mut event_time = "event_time".to_owned();
        while fields.iter().any(|f| f.name == event_time) {
            event_time.push('_');
        }
        let mut found = vec![(INSTANT.to_owned(), Type::Time)];
        for field in columns.iter().map(|at| &fields[*at]) {
            type_name(field.ty)?;
            if !field.name.eq_ignore_ascii_case(INSTANT) {
                found.push((field.name.clone(), field.ty));
            }
        }
        Ok(FlinkTable {
            stream: name.clone(),
            columns: found,
            event_time,
        })
    }

    /// Its rows once for each window that contains them.
    pub(super) fn windows(&self, size_ms: i64, slide_ms: i64) -> String {
        let (table, time) = (quoted(&self.stream), quoted(&self.event_time));
        let size = interval(size_ms);
        match size_ms == slide_ms {
            true => format!("TABLE(TUMBLE(TABLE {table}, DESCRIPTOR({time}), {size}))"),
            false => {
                let slide = interval(slide_ms);
                format!("TABLE(HOP(TABLE {table}, DESCRIPTOR({time}), {slide}, {size}))")
            }
        }
    }

    /// `CREATE TABLE`, with these options of its connector and format. `{stream}` in a value is the
    /// name of the stream.
    pub fn definition(&self, with: &[(String, String)]) -> String {
        let columns = self.columns.iter();
        let columns = columns.map(|(name, ty)| {
            let ty = type_name(*ty).expect("checked when it was added");
            format!("  {} {ty}", quoted(name))
        });
        let (instant, time) = (quoted(INSTANT), quoted(&self.event_time));
        let options = with.iter().map(|(key, value)| {
            let value = value.replace("{stream}", &self.stream);
            format!("  {} = {}", text(key), text(&value))
        });
        format!(
            "CREATE TABLE {} (\n{},\n  \
             {time} AS TO_TIMESTAMP_LTZ(({instant} - 1) / 1000000, 3),\n  \
             WATERMARK FOR {time} AS {time} - {WATERMARK}\n) WITH (\n{}\n)",
            quoted(&self.stream),
            columns.collect::<Vec<_>>().join(",\n"),
            options.collect::<Vec<_>>().join(",\n"),
        )
    }

    /// The query whose rows, as JSON, are those of the table.
    pub fn source(&self) -> String {
        let column = |(name, ty): &(String, Type)| match ty {
            Type::Time => format!("cast({name} as integer) as {name}"),
            _ => name.clone(),
        };
        let columns: Vec<String> = self.columns.iter().map(column).collect();
        format!("select {} from {}", columns.join(", "), self.stream)
    }
}

/// The type of Flink with the same values; NULL is among them.
pub(super) fn type_name(ty: Type) -> Result<&'static str, Untranslatable> {
    Ok(match ty {
        Type::Bool => "BOOLEAN",
        Type::Int | Type::Time => "BIGINT",
        Type::Float => "DOUBLE",
        Type::Text => "STRING",
        other => return refuse(format!("Flink has no type for a {other}")),
    })
}

/// A duration. The leading field of Flink's intervals has two digits unless more are declared.
fn interval(ms: i64) -> String {
    let units = [
        (86_400_000, "DAY"),
        (3_600_000, "HOUR"),
        (60_000, "MINUTE"),
        (1_000, "SECOND"),
    ];
    let whole = units
        .iter()
        .find(|(unit, _)| ms % unit == 0 && ms / unit < 100);
    if let Some((unit, name)) = whole {
        return format!("INTERVAL '{}' {name}", ms / unit);
    }
    let (days, rest) = (ms / 86_400_000, ms % 86_400_000);
    let (hours, minutes) = (rest / 3_600_000, rest / 60_000 % 60);
    let (seconds, ms) = (rest / 1000 % 60, rest % 1000);
    format!("INTERVAL '{days} {hours:02}:{minutes:02}:{seconds:02}.{ms:03}' DAY(6) TO SECOND(3)")
}

#[cfg(test)]
mod tests {
    use super::interval;

    #[test]
    fn intervals_are_in_the_largest_unit_of_two_digits() {
        assert_eq!(interval(10_000), "INTERVAL '10' SECOND");
        assert_eq!(interval(120_000), "INTERVAL '2' MINUTE");
        assert_eq!(interval(86_400_000), "INTERVAL '1' DAY");
        let parts = "INTERVAL '0 00:01:40.500' DAY(6) TO SECOND(3)";
        assert_eq!(interval(100_500), parts);
        let many = "INTERVAL '365 00:00:00.000' DAY(6) TO SECOND(3)";
        assert_eq!(interval(365 * 86_400_000), many);
    }
}
