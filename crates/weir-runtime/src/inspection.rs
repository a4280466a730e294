//! DESCRIBE and SHOW: their results as relations.

use std::sync::Arc;

use weir_model::{
    Alias, Batch, Column, Declaration, Field, NANOS_PER_SECOND, Schema, Shape, StoredView, Type,
    Value, suggest,
};
use weir_query::LikePattern;
use weir_query::function::documented;
use weir_query::library::described;
use weir_query::syntax::ast::{CatalogList, CatalogQuery};
use weir_sink::{InstantUnit, ResultSchema};
use weir_tap::live;

use crate::failure::Failure;
use crate::output::OutputOptions;
use crate::question::QueryText;
use crate::shipped::ShippedStream;
use crate::source::SourceOptions;
use crate::views;

/// A result.
pub struct Listing {
    columns: Vec<Field>,
    rows: Vec<Vec<Value>>,
}

impl Listing {
    /// A listing with these columns.
    pub fn new(columns: &[(&str, Type)]) -> Listing {
        let field = |(name, ty): &(&str, Type)| Field::new(*name, *ty).nullable();
        Listing {
            columns: columns.iter().map(field).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row.
    pub fn push(&mut self, row: Vec<Value>) {
        self.rows.push(row);
    }

    /// Keeps the rows whose first column is like a pattern of LIKE, without regard to case.
    pub fn keep_like(&mut self, pattern: &str) {
        let pattern = LikePattern::new(pattern, true);
        let is_like = |row: &Vec<Value>| match &row[0] {
            Value::Text(name) => pattern.matches(name.as_str()),
            _ => false,
        };
        self.rows.retain(is_like);
    }

    /// Writes it.
    ///
    /// # Errors
    /// When the output fails.
    pub fn write(self, output: &OutputOptions) -> Result<(), Failure> {
        let output = OutputOptions {
            last: true,
            ..output.clone()
        };
        let rows = self.rows;
        let column = |(at, field): (usize, &Field)| {
            let values = rows.iter().map(|row| row[at].clone());
            Column::from_values(field.ty, values)
        };
        let columns = self.columns.iter().enumerate().map(column).collect();
        let answer = ResultSchema {
            schema: Arc::new(Schema::new(self.columns.clone())),
            shape: Shape::Relation,
            clock: InstantUnit::Nanoseconds,
            order: Vec::new(),
            raw: output.raw,
        };
        let mut sink = output.open(answer, false)?;
        let count = rows.len();
        let now = crate::run_loop::wall_clock() / NANOS_PER_SECOND * NANOS_PER_SECOND;
        let batch = Batch::deltas(vec![now; count], vec![1; count], columns);
        let failed = |e: weir_sink::SinkError| Failure::world(e);
        if count > 0 {
            sink.write(&batch).map_err(failed)?;
        }
        sink.finish().map_err(failed)
    }
}

/// The result of a statement on this host, or over recordings.
///
/// # Errors
/// The diagnostics of the text, or what prevents the answer.
pub fn listing(
    text: &QueryText,
    inspection: &CatalogQuery,
    args: &SourceOptions,
) -> Result<Listing, Failure> {
    Ok(match inspection {
        CatalogQuery::Describe { name, .. } => {
            let name = name.as_ref().map(|name| name.value.as_str());
            describe(text, name, args)?
        }
        CatalogQuery::ShowView(name) => view(&views::read()?, &name.value)?,
        CatalogQuery::Show { what, like } => {
            let mut listing = match what {
                CatalogList::Streams => streams(args)?,
                CatalogList::Views => stored_views(&views::read()?),
                CatalogList::Functions => functions(),
                CatalogList::Queries => {
                    let message = "SHOW QUERIES lists the queries of a monitor: add --monitor";
                    return Err(Failure::words(message));
                }
            };
            if let Some(like) = like {
                listing.keep_like(&like.value);
            }
            listing
        }
    })
}

fn describe(
    text: &QueryText,
    name: Option<&str>,
    args: &SourceOptions,
) -> Result<Listing, Failure> {
    let checked = text.over(args, args.is_live(), described)?;
    let checked = checked.map_err(|d| text.failure(&d))?;
    // The columns of a plan have no descriptions.
    let catalog = args.capabilities().map(|c| c.catalog());
    let catalog = catalog.unwrap_or_else(|_| weir_model::Catalog::builtin());
    let declared = name.and_then(|name| catalog.find(name));
    Ok(columns(match declared {
        Some(declaration) => &declaration.schema.fields,
        None => &checked.plan.schema.fields,
    }))
}

/// The columns of a stream, relation or query.
pub fn columns(fields: &[Field]) -> Listing {
    let mut listing = Listing::new(&[
        ("position", Type::Int),
        ("column", Type::Text),
        ("type", Type::Text),
        ("unit", Type::Text),
        ("nullable", Type::Bool),
        ("aliases", Type::Text),
        ("description", Type::Text),
    ]);
    for (at, field) in fields.iter().enumerate() {
        let aliases: Vec<String> = field.aliases.iter().map(alias).collect();
        listing.push(vec![
            Value::Int(at as i64 + 1),
            Value::text(&field.name),
            Value::text(field.ty.name()),
            unless_empty(field.unit.symbol()),
            Value::Bool(field.nullable),
            unless_empty(&aliases.join(", ")),
            unless_empty(&field.doc),
        ]);
    }
    listing
}

/// An alias, with its unit if it has another one.
pub fn alias(alias: &Alias) -> String {
    match alias.converted {
        Some(unit) => format!("{} ({unit})", alias.name),
        None => alias.name.to_owned(),
    }
}

fn unless_empty(text: &str) -> Value {
    match text.is_empty() {
        true => Value::Null,
        false => Value::text(text),
    }
}

/// The streams and relations of the sources; of the host also those of shipped probes.
fn streams(args: &SourceOptions) -> Result<Listing, Failure> {
    let is_live = args.is_live();
    let declarations: Vec<Declaration> = match is_live {
        true => live::capabilities().catalog().declarations,
        false => {
            let streams = args.capabilities()?.streams;
            let named = streams.into_iter().map(|stream| stream.declaration);
            let is_queryable = |d: &Declaration| d.name != weir_model::capabilities::RECORDING;
            named.filter(is_queryable).collect()
        }
    };
    let mut listing = stream_listing(&declarations);
    let shipped = ShippedStream::all().into_iter().filter(|_| is_live);
    for stream in shipped {
        listing.push(vec![
            Value::text(&stream.name),
            Value::text("probe"),
            unless_empty(&stream.doc_on_this_host()),
        ]);
    }
    Ok(listing)
}

/// Streams and relations, each with its kind and description.
pub fn stream_listing(declarations: &[Declaration]) -> Listing {
    let mut listing = Listing::new(&[
        ("name", Type::Text),
        ("kind", Type::Text),
        ("description", Type::Text),
    ]);
    for declaration in declarations {
        listing.push(vec![
            Value::text(&declaration.name),
            Value::text(declaration.shape.name()),
            unless_empty(&declaration.doc),
        ]);
    }
    listing
}

/// The functions.
pub fn functions() -> Listing {
    let mut listing = Listing::new(&[
        ("name", Type::Text),
        ("kind", Type::Text),
        ("signature", Type::Text),
        ("description", Type::Text),
    ]);
    for (kind, doc) in documented() {
        listing.push(vec![
            Value::text(doc.name),
            Value::text(kind),
            Value::text(doc.signature),
            Value::text(doc.summary),
        ]);
    }
    listing
}

/// Stored views.
pub fn stored_views(views: &[StoredView]) -> Listing {
    let mut listing = Listing::new(&[("name", Type::Text), ("definition", Type::Text)]);
    for view in views {
        listing.push(vec![Value::text(&view.name), Value::text(&view.text)]);
    }
    listing
}

/// The statement that defines a stored view.
///
/// # Errors
/// When there is no such view.
pub fn view(views: &[StoredView], name: &str) -> Result<Listing, Failure> {
    let found = views.iter().find(|v| v.name.eq_ignore_ascii_case(name));
    let Some(view) = found else {
        let names = views.iter().map(|view| view.name.as_str());
        let remedy = match suggest::nearest(name, names) {
            Some(near) => format!("did you mean `{near}`?"),
            None => "SHOW VIEWS lists them".to_owned(),
        };
        let message = format!("there is no stored view `{name}`; {remedy}");
        return Err(Failure::words(message));
    };
    Ok(stored_views(std::slice::from_ref(view)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_is_any_text_and_underscore_any_character() {
        for (text, pattern, expected) in [
            ("io", "io", true),
            ("iostream", "io", false),
            ("iostream", "io%", true),
            ("IOpath", "%path", true),
            ("iopath", "%o%t%", true),
            ("io", "I_", true),
            ("io", "i__", false),
            ("", "%", true),
            ("é", "_", true),
        ] {
            let mut listing = Listing::new(&[("name", Type::Text)]);
            listing.push(vec![Value::text(text)]);
            listing.keep_like(pattern);
            assert_eq!(!listing.rows.is_empty(), expected, "{text} like {pattern}");
        }
    }
}
