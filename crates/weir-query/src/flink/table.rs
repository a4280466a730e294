//! [`FlinkTable`]: the table of a stream, or of what agents send.

use weir_model::{Declaration, Field, Shape, Type};

use super::block::indented;
use super::{MILLISECOND, Untranslatable, quoted, refuse, text};
use crate::place::fleet::published::{
    CONTENT, EVENT_TIME, PublishedRows, RESERVED, SHARED_QUERY, WindowEnds,
};
use crate::plan::{Plan, greatest_common_divisor, sliding_windows};

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
    /// The rows are those that agents send.
    published: Option<Published>,
}

/// The rows that agents send, each perhaps more than once.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Published {
    rows: PublishedRows,
    /// The windows in which repeated rows are removed.
    pane_ms: i64,
    topic: TopicContent,
}

/// What a topic has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopicContent {
    /// The rows of one fragment. Their columns are fields of each message, or of the rows in its
    /// field `content`.
    OneFragment,
    /// The rows of several fragments, each with its name in the field `query`. Their columns, or
    /// the rows of a relation, are in a field with this name.
    Several,
}

/// A view: its name and its query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlinkView {
    /// Its name.
    pub name: String,
    /// `SELECT ..`.
    pub select: String,
}

impl FlinkView {
    /// `CREATE TEMPORARY VIEW`.
    pub fn definition(&self) -> String {
        let name = quoted(&self.name);
        format!("CREATE TEMPORARY VIEW {name} AS\n{}", self.select)
    }
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
                "{name} is a relation: only its content at the ends of windows becomes a table of \
                 Flink, where it is forwarded to Kafka (--forward)"
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
            published: None,
        })
    }

    /// The table of the rows with this name that agents send.
    pub(super) fn published(
        name: &str,
        rows: PublishedRows,
        topic: TopicContent,
        pane_ms: i64,
    ) -> Result<FlinkTable, Untranslatable> {
        let own = rows.columns.iter().map(|c| &c.field);
        // The columns of each message precede those of its fragment.
        let mut columns = RESERVED.map(|(name, ty)| (name.to_owned(), ty)).to_vec();
        columns.extend(own.map(|field| (field.name.clone(), field.ty)));
        for (_, ty) in &columns {
            message_type(*ty)?;
        }
        let published = Published {
            rows,
            pane_ms,
            topic,
        };
        Ok(FlinkTable {
            stream: name.to_owned(),
            columns,
            event_time: EVENT_TIME.into(),
            published: Some(published),
        })
    }

    /// The rows that agents send, if the table is one of these.
    pub(super) fn rows(&self) -> Option<&PublishedRows> {
        self.published.as_ref().map(|published| &published.rows)
    }

    /// The columns of the stream, as SQL.
    pub(super) fn fields(&self, declaration: &Declaration) -> Vec<String> {
        match &self.published {
            Some(Published { rows, .. }) => {
                rows.columns.iter().map(|c| quoted(&c.field.name)).collect()
            }
            None => {
                let fields = declaration.schema.fields.iter();
                fields.map(|field| quoted(&field.name)).collect()
            }
        }
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
        let (instant, time) = (quoted(INSTANT), quoted(&self.event_time));
        let watermark = match self.published {
            // A row of no host is a watermark: all rows up to its instant precede it.
            Some(_) => format!(
                "CASE WHEN `host` IS NULL THEN TO_TIMESTAMP_LTZ({instant} / 1000000 - 1, 3) END"
            ),
            None => format!("{time} - {WATERMARK}"),
        };
        let options = with.iter().map(|(key, value)| {
            let value = value.replace("{stream}", &self.stream);
            format!("  {} = {}", text(key), text(&value))
        });
        format!(
            "CREATE TABLE {} (\n{},\n  \
             {time} AS TO_TIMESTAMP_LTZ(({instant} - 1) / 1000000, 3),\n  \
             WATERMARK FOR {time} AS {watermark}\n) WITH (\n{}\n)",
            quoted(&self.name()),
            self.field_types().join(",\n"),
            options.collect::<Vec<_>>().join(",\n"),
        )
    }

    /// The fields of a message with their types.
    fn field_types(&self) -> Vec<String> {
        let typed = |(name, ty): &(String, Type)| {
            let ty = message_type(*ty).expect("checked when it was added");
            format!("{} {ty}", quoted(name))
        };
        let is_nested =
            self.topic_content() == TopicContent::Several || self.content_at().is_some();
        let (fields, own) = match is_nested {
            true => self.columns.split_at(RESERVED.len()),
            false => (&self.columns[..], &[][..]),
        };
        let mut types: Vec<String> = fields.iter().map(typed).collect();
        if self.topic_content() == TopicContent::Several {
            types.push(typed(&(SHARED_QUERY.to_owned(), Type::Text)));
        }
        // A row of Flink has at least one field.
        if !own.is_empty() {
            let own: Vec<String> = own.iter().map(typed).collect();
            let row = format!("ROW<{}>", own.join(", "));
            types.push(match self.content_at() {
                Some(_) => format!("{} ARRAY<{row}>", quoted(self.content_field())),
                None => format!("{} {row}", quoted(&self.stream)),
            });
        }
        types
            .into_iter()
            .map(|field| format!("  {field}"))
            .collect()
    }

    /// What its topic has.
    pub fn topic_content(&self) -> TopicContent {
        let published = self.published.as_ref();
        published.map_or(TopicContent::OneFragment, |published| published.topic)
    }

    /// For a relation, the windows at whose ends the table has its content.
    pub(super) fn content_at(&self) -> Option<WindowEnds> {
        self.rows().and_then(|rows| rows.content_at)
    }

    /// The field with the rows of a relation.
    fn content_field(&self) -> &str {
        match self.topic_content() {
            TopicContent::OneFragment => CONTENT,
            TopicContent::Several => &self.stream,
        }
    }

    /// The name of the table.
    fn name(&self) -> String {
        match self.published {
            Some(_) => format!("{} messages", self.stream),
            None => self.stream.clone(),
        }
    }

    /// The rows that agents send, each once, without watermarks.
    pub fn view(&self) -> Option<FlinkView> {
        let Published { rows, topic, .. } = self.published.as_ref()?;
        let names = rows.columns.iter().map(|c| quoted(&c.field.name));
        let (instant, time) = (quoted(INSTANT), quoted(&self.event_time));
        let rows_name = quoted(&self.stream);
        let select = match rows.content_at {
            Some(_) => {
                let names: Vec<String> = names.collect();
                let content = quoted(self.content_field());
                let latest = indented(&self.latest(&content, "`host`")?);
                let own = names.iter().map(|name| format!("`rows`.{name}"));
                format!(
                    "SELECT `message`.{instant}, {}, `message`.{time}\nFROM (\n{latest}\n) AS \
                     `message`\nCROSS JOIN UNNEST(`message`.{content}) AS `rows` ({})",
                    own.collect::<Vec<_>>().join(", "),
                    names.join(", "),
                )
            }
            None => {
                let own: Vec<String> = match topic {
                    TopicContent::OneFragment => names.collect(),
                    TopicContent::Several => names
                        .map(|name| format!("{rows_name}.{name} AS {name}"))
                        .collect(),
                };
                let key = "`host`, `epoch`, `sequence`, `position`";
                self.latest(&own.join(", "), key)?
            }
        };
        Some(FlinkView {
            name: self.stream.clone(),
            select,
        })
    }

    /// The instant, these columns and the event time of the last message with each key.
    fn latest(&self, columns: &str, key: &str) -> Option<String> {
        let published = self.published.as_ref()?;
        let filter = match published.topic {
            TopicContent::OneFragment => String::new(),
            TopicContent::Several => {
                format!(" AND {} = {}", quoted(SHARED_QUERY), text(&self.stream))
            }
        };
        let columns = match columns {
            "" => quoted(INSTANT),
            columns => format!("{}, {columns}", quoted(INSTANT)),
        };
        let (table, time) = (quoted(&self.name()), quoted(&self.event_time));
        let pane = interval(published.pane_ms);
        Some(format!(
            "SELECT {columns}, `window_time` AS {time}\nFROM (\n  SELECT *, ROW_NUMBER() OVER \
             (PARTITION BY `window_start`, `window_end`, {key} ORDER BY {time} DESC) AS \
             `row_number`\n  FROM TABLE(TUMBLE(TABLE {table}, DESCRIPTOR({time}), {pane}))\n  \
             WHERE `host` IS NOT NULL{filter}\n)\nWHERE `row_number` = 1",
        ))
    }

    /// For a relation: whether a row is of the content at the end of its window.
    pub(super) fn is_at_end() -> String {
        let instant = quoted(INSTANT);
        format!("`window_end` = TO_TIMESTAMP_LTZ({instant} / 1000000, 3)")
    }

    /// The query whose rows, as JSON, are those of the table; `None` for what agents send.
    pub fn source(&self) -> Option<String> {
        if self.published.is_some() {
            return None;
        }
        let column = |(name, ty): &(String, Type)| match ty {
            Type::Time => format!("cast({name} as integer) as {name}"),
            _ => name.clone(),
        };
        let columns: Vec<String> = self.columns.iter().map(column).collect();
        let columns = columns.join(", ");
        Some(format!("select {columns} from {}", self.stream))
    }
}

/// The type of a column of a table: states of aggregates are bytes.
fn message_type(ty: Type) -> Result<&'static str, Untranslatable> {
    match ty {
        Type::Partial => Ok("BYTES"),
        ty => type_name(ty),
    }
}

/// The greatest duration of which all windows of a plan consist, in milliseconds.
pub(super) fn pane_ms(plan: &Plan) -> Result<i64, Untranslatable> {
    let slides = sliding_windows(plan).into_iter().map(|(_, slide)| slide);
    let pane = slides.fold(0, greatest_common_divisor);
    match pane {
        0 => Ok(1_000),
        pane if pane % MILLISECOND == 0 => Ok(pane / MILLISECOND),
        _ => refuse("a slide does not have whole milliseconds"),
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
