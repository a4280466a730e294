//! [`Stored`]: the stream or relation of a recording, as its file describes it.
//!
//! The Arrow schema has a field for each column, with metadata `unit`, `doc`, `aliases` (a list of
//! names with commas between them, each with its unit if that is another), `nullable` (`false` if
//! no row has NULL there) and `values` (the set of its values). If the columns do not include the
//! instant of a row, and for the weights of a relation, there are further columns.

use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use arrow_schema::{DataType, SchemaRef, TimeUnit};
use parquet::arrow::arrow_reader::ArrowReaderMetadata;
use weir_model::arrow::{arrow_array, arrow_field};
use weir_model::capabilities::{Rate, RequestRows, Select, recording};
use weir_model::{
    Alias, Batch, Capabilities, Catalog, ClosedSet, Column, ColumnCapabilities, Declaration, Field,
    Schema, Shape, StreamCapabilities, Symbol, Type, Unit,
};

use super::super::wanted::{LIMITS, NOT_TESTED};
use super::fold::fold;
use super::folded::{ADDED, stored_as};
use super::recover::value;
use super::{DOC_KEY, SHAPE_KEY, STREAM_KEY};

/// The column with the instant of a row, if a column of the stream is that.
const TS: &str = "ts";
/// The column with the instant of a row otherwise.
const INSTANT: &str = "weir.ts";
/// The column with how often a row of a relation was inserted, or retracted if negative.
const WEIGHT: &str = "weir.weight";

const RELATION: &str = "relation";

/// The sets of values, by their names in files.
const SETS: [(&str, ClosedSet); 3] = [
    ("type", ClosedSet::EventKind),
    ("op", ClosedSet::Op),
    ("level", ClosedSet::Level),
];

/// The stream or relation of a recording.
#[derive(Clone, Debug)]
pub struct Stored {
    /// Its name, columns and meaning.
    pub declaration: Declaration,
}

impl Stored {
    /// A stream or relation that is to be recorded.
    ///
    /// # Errors
    /// If a recording cannot hold it, a message.
    pub fn new(declaration: &Declaration) -> Result<Stored, String> {
        let fields = &declaration.schema.fields;
        match fields
            .iter()
            .find(|f| matches!(f.ty, Type::Tally | Type::Partial))
        {
            Some(field) => Err(format!(
                "column `{}` of `{}` is a {}, which a recording does not hold",
                field.name, declaration.name, field.ty
            )),
            None => Ok(Stored {
                declaration: declaration.clone(),
            }),
        }
    }

    /// The stream that a file describes. One of the catalog has the catalog's columns, whichever of
    /// them are in the file.
    ///
    /// # Errors
    /// If a column has a type that no stream has, a message.
    pub fn of(file: &ArrowReaderMetadata) -> Result<Stored, String> {
        let key = |key| value(file.metadata(), key);
        let declaration = match key(STREAM_KEY) {
            None => recording(),
            Some(name) if RequestRows::of(name) == Some(RequestRows::All) => recording(),
            Some(name) => match Catalog::builtin().find(name) {
                Some(known) => known.clone(),
                None => Declaration {
                    doc: key(DOC_KEY).unwrap_or_default().into(),
                    ..Declaration::new(name, shape(key(SHAPE_KEY)), schema(file.schema())?)
                },
            },
        };
        Ok(Stored { declaration })
    }

    /// Whether its rows are requests and responses, from which the streams of block I/O follow.
    pub fn is_of_requests(&self) -> bool {
        RequestRows::of(&self.declaration.name) == Some(RequestRows::All)
    }

    /// The capabilities of a file with this content: all rows of the row groups that are read are
    /// delivered, and with `has_statistics` those are read that can have selected rows.
    pub fn capabilities(
        &self,
        groups: &str,
        paired: Result<(), String>,
        has_statistics: bool,
    ) -> Capabilities {
        let select = match has_statistics {
            true => Select::AtLeast,
            false => Select::No,
        };
        let column = |name: &str| ColumnCapabilities {
            select: match stored_as(name).is_some() || NOT_TESTED.contains(&name) {
                true => Select::No,
                false => select,
            },
            ..ColumnCapabilities::default()
        };
        if self.is_of_requests() {
            return Capabilities::of_io(LIMITS, groups, paired, column);
        }
        let rows = RequestRows::of(&self.declaration.name);
        let rate = rows.map_or(Rate::Polled, |rows| Rate::PerRequest(rows.per_request()));
        let mut stream = StreamCapabilities::of_rows(self.declaration.clone(), rate, groups);
        if self.declaration.shape == Shape::Stream {
            let fields = &self.declaration.schema.fields;
            stream.columns = fields.iter().map(|field| column(&field.name)).collect();
            stream.limits = LIMITS;
        }
        Capabilities {
            streams: vec![stream],
        }
    }

    /// The keys of a footer that describe it.
    pub fn keys(&self) -> Vec<(&'static str, String)> {
        let shape = match self.declaration.shape {
            Shape::Stream => "stream",
            Shape::Relation => RELATION,
        };
        vec![
            (STREAM_KEY, self.declaration.name.clone()),
            (SHAPE_KEY, shape.into()),
            (DOC_KEY, self.declaration.doc.clone()),
        ]
    }

    /// The columns of its file: its own, and those of [`Stored::added`]; of requests those of
    /// [`super::folded`].
    pub fn arrow_schema(&self) -> SchemaRef {
        let fields = &self.declaration.schema.fields;
        if self.is_of_requests() {
            let own = fields
                .iter()
                .filter(|field| stored_as(&field.name).is_none());
            let fields: Vec<arrow_schema::Field> = own.chain(&*ADDED).map(described).collect();
            return SchemaRef::new(arrow_schema::Schema::new(fields));
        }
        let own = fields.iter().map(described);
        let added = self.added().into_iter();
        let added = added.map(|(name, ty)| arrow_field(name, &Field::new(name, ty)));
        let fields: Vec<arrow_schema::Field> = own.chain(added).collect();
        SchemaRef::new(arrow_schema::Schema::new(fields))
    }

    /// The column of the file with the instant of a row.
    pub fn instant(&self) -> &'static str {
        let mut fields = self.declaration.schema.fields.iter();
        match fields.any(|f| f.name == TS && f.ty == Type::Time) {
            true => TS,
            false => INSTANT,
        }
    }

    /// The column of the file with the weight of a row.
    pub fn weight(&self) -> Option<&'static str> {
        (self.declaration.shape == Shape::Relation).then_some(WEIGHT)
    }

    /// The columns of the file that are not columns of the stream.
    fn added(&self) -> Vec<(&'static str, Type)> {
        let instant = Some((self.instant(), Type::Time)).filter(|(name, _)| *name != TS);
        let weight = self.weight().map(|name| (name, Type::Int));
        instant.into_iter().chain(weight).collect()
    }

    /// The rows of a batch after `events` events, with the columns of [`Stored::arrow_schema`]. Of
    /// requests the batch is a block.
    pub fn rows(&self, batch: &Batch, events: i64, schema: &SchemaRef) -> RecordBatch {
        let fields = self.declaration.schema.fields.iter();
        if self.is_of_requests() {
            let folded = fold(batch, events);
            let own = folded.own.iter().zip(fields);
            let own = own.filter(|(_, field)| stored_as(&field.name).is_none());
            let all = own.chain(folded.added.iter().zip(&*ADDED));
            let arrays = all.map(|(column, field)| arrow_array(column, field.ty));
            return RecordBatch::try_new(schema.clone(), arrays.collect())
                .expect("a block has the columns of requests");
        }
        let own = batch.columns.iter().zip(fields);
        let own = own.map(|(column, field)| arrow_array(column, field.ty));
        let added = self.added().into_iter().map(|(name, ty)| {
            let values = match name == WEIGHT {
                true => (0..batch.len()).map(|row| batch.weight(row)).collect(),
                false => batch.ts.to_vec(),
            };
            arrow_array(&Column::Int(Int64Array::from(values)), ty)
        });
        let arrays: Vec<ArrayRef> = own.chain(added).collect();
        RecordBatch::try_new(schema.clone(), arrays).expect("a batch has the columns of its stream")
    }
}

fn shape(name: Option<&str>) -> Shape {
    match name {
        Some(RELATION) => Shape::Relation,
        _ => Shape::Stream,
    }
}

/// The field of a column in a file.
fn described(column: &Field) -> arrow_schema::Field {
    let field = arrow_field(&column.name, column);
    let mut metadata = field.metadata().clone();
    let alias = |alias: &Alias| match alias.converted {
        Some(unit) => format!("{} {}", alias.name, unit.symbol()),
        None => alias.name.to_owned(),
    };
    let aliases: Vec<String> = column.aliases.iter().map(alias).collect();
    if !aliases.is_empty() {
        metadata.insert("aliases", aliases.join(","));
    }
    if !column.nullable {
        metadata.insert("nullable", "false");
    }
    if let Some((name, _)) = SETS.iter().find(|(_, set)| Some(*set) == column.values) {
        metadata.insert("values", *name);
    }
    field.with_metadata(metadata)
}

/// The columns that a file describes.
fn schema(file: &SchemaRef) -> Result<Arc<Schema>, String> {
    let own = |field: &&Arc<arrow_schema::Field>| ![INSTANT, WEIGHT].contains(&&**field.name());
    let fields = file.fields().iter().filter(own).map(|field| column(field));
    Ok(Schema::new(fields.collect::<Result<_, _>>()?).into())
}

/// The column that a field of a file describes.
fn column(field: &arrow_schema::Field) -> Result<Field, String> {
    let ty = match field.data_type() {
        DataType::Boolean => Type::Bool,
        DataType::Int64 => Type::Int,
        DataType::Float64 => Type::Float,
        DataType::Timestamp(TimeUnit::Nanosecond, _) => Type::Time,
        DataType::Utf8View => Type::Text,
        other => {
            return Err(format!(
                "column {} holds {other}, which no stream has",
                field.name()
            ));
        }
    };
    let of = |key: &str| field.metadata().get(key).map_or("", String::as_str);
    let alias = |text: &str| -> Result<Alias, String> {
        let (name, unit) = text.split_once(' ').unwrap_or((text, ""));
        let name = Symbol::try_new(name).map_err(|full| full.to_string())?;
        Ok(match Unit::from_symbol(unit) {
            None | Some(Unit::None) => Alias::same(name.as_str()),
            Some(unit) => Alias::in_unit(name.as_str(), unit),
        })
    };
    let aliases = of("aliases").split(',').filter(|text| !text.is_empty());
    let aliases: Vec<Alias> = aliases.map(alias).collect::<Result<_, _>>()?;
    let values = SETS.iter().find(|(name, _)| *name == of("values"));
    Ok(Field {
        nullable: of("nullable") != "false",
        values: values.map(|(_, set)| *set),
        ..Field::new(field.name(), ty)
            .unit(Unit::from_symbol(of("unit")).unwrap_or_default())
            .doc(of("doc"))
            .aliases(&aliases)
    })
}
