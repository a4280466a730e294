//! `--format parquet`: the answer as a Parquet file, complete once it is finished.
//!
//! Columns: `instant` (timestamp in UTC; in a script the tick, an integer), `weight` (how often a
//! relation's row came or went; not of a stream), then the answer's, texts as dictionaries. Units
//! and meanings are in the metadata of each column.

use std::sync::Arc;

use ::parquet::arrow::ArrowWriter;
use ::parquet::basic::{Compression, ZstdLevel};
use ::parquet::errors::ParquetError;
use ::parquet::file::properties::WriterProperties;
use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use arrow_schema::Schema as ArrowSchema;
use weir_model::arrow::{arrow_array, arrow_field};
use weir_model::{Batch, Column, Field, Shape, Type};

use crate::{Answer, Clock, Format, Sink, SinkError, Target};

/// `--format parquet`.
pub static FORMAT: Format = Format {
    name: "parquet",
    doc: "a Parquet file (with -o), with `instant` and `weight` beside the columns",
    open: |answer, target| Ok(Box::new(Parquet::open(answer, target)?)),
};

/// Most rows and bytes of a row group, which is held in memory until it is full.
const ROW_GROUP_ROWS: usize = 1 << 17;
const ROW_GROUP_BYTES: usize = 64 << 20;

struct Parquet {
    name: String,
    answer: Answer,
    schema: Arc<ArrowSchema>,
    writer: ArrowWriter<Target>,
}

impl Parquet {
    fn open(answer: Answer, target: Target) -> Result<Parquet, SinkError> {
        if target.screen().is_some() {
            return Err(SinkError::Unsuited {
                what: "Parquet is not for terminals".into(),
                remedy: "name a file with -o FILE.parquet".into(),
            });
        }
        let name = target.name().to_owned();
        let schema = Arc::new(schema(&answer));
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .set_max_row_group_row_count(Some(ROW_GROUP_ROWS))
            .set_max_row_group_bytes(Some(ROW_GROUP_BYTES))
            .build();
        let writer = ArrowWriter::try_new(target, schema.clone(), Some(properties))
            .map_err(|e| failed(&name, e))?;
        Ok(Parquet {
            name,
            answer,
            schema,
            writer,
        })
    }

    fn write_rows(&mut self, batch: &Batch) -> Result<(), SinkError> {
        let instants = Column::Int(Int64Array::new(batch.ts.clone(), None));
        let mut arrays: Vec<ArrayRef> = vec![arrow_array(&instants, instant(&self.answer).ty)];
        if self.answer.shape == Shape::Relation {
            let weights = (0..batch.len()).map(|i| batch.weight(i));
            arrays.push(Arc::new(Int64Array::from_iter_values(weights)));
        }
        let columns = batch.columns.iter().zip(&self.answer.schema.fields);
        arrays.extend(columns.map(|(column, field)| arrow_array(column, field.ty)));
        let rows = RecordBatch::try_new(self.schema.clone(), arrays)
            .expect("the arrays are those of the schema");
        self.writer.write(&rows).map_err(|e| failed(&self.name, e))
    }
}

impl Sink for Parquet {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        let once = |row: usize| self.answer.lines(batch.weight(row)) == 1;
        let mut start = 0;
        for row in (0..batch.len())
            .filter(|&row| !once(row))
            .collect::<Vec<_>>()
        {
            if start < row {
                self.write_rows(&batch.slice(start, row - start))?;
            }
            for _ in 0..batch.weight(row) {
                self.write_rows(&batch.slice(row, 1))?;
            }
            start = row + 1;
        }
        match batch.len() - start {
            0 => Ok(()),
            rest => self.write_rows(&batch.slice(start, rest)),
        }
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        Ok(())
    }

    fn finish(&mut self) -> Result<(), SinkError> {
        self.writer.finish().map_err(|e| failed(&self.name, e))?;
        self.writer.inner_mut().flush()
    }
}

fn instant(answer: &Answer) -> Field {
    let ty = match answer.clock {
        Clock::Nanoseconds => Type::Time,
        Clock::Ticks => Type::Int,
    };
    Field::new("instant", ty).doc("when the row came or went")
}

fn schema(answer: &Answer) -> ArrowSchema {
    let mut fields = vec![arrow_field("instant", &instant(answer))];
    if answer.shape == Shape::Relation {
        let weight = Field::new("weight", Type::Int);
        let weight = weight.doc("how often the row came (> 0) or went (< 0)");
        fields.push(arrow_field("weight", &weight));
    }
    let names = answer.unique_names(&["instant", "weight"]);
    let columns = names.iter().zip(&answer.schema.fields);
    fields.extend(columns.map(|(name, field)| arrow_field(name, field)));
    ArrowSchema::new(fields)
}

fn failed(name: &str, error: ParquetError) -> SinkError {
    let name = name.to_owned();
    match error {
        ParquetError::External(e) if e.is::<std::io::Error>() => {
            let error = e.downcast().expect("just asked");
            SinkError::io(&name, *error)
        }
        error => SinkError::Parquet { name, error },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::capture::Captured;
    use ::parquet::file::reader::{FileReader, SerializedFileReader};
    use weir_model::{Schema, Unit};

    fn answer(shape: Shape) -> Answer {
        let latency = Field::new("latency", Type::Int).unit(Unit::Nanoseconds);
        Answer {
            schema: Arc::new(Schema::new(vec![Field::new("op", Type::Text), latency])),
            shape,
            clock: Clock::Nanoseconds,
            order: vec![],
            raw: false,
        }
    }

    fn lines(captured: &Captured) -> Vec<String> {
        let bytes = bytes::Bytes::from(captured.bytes());
        let reader = SerializedFileReader::new(bytes).unwrap();
        let rows = reader.get_row_iter(None).unwrap();
        rows.map(|r| r.unwrap().to_string()).collect()
    }

    #[test]
    fn a_finished_file_reads_back() {
        let out = Captured::default();
        let mut sink = (FORMAT.open)(answer(Shape::Relation), out.target(None)).unwrap();
        let columns = vec![Column::texts(["r", "w"]), Column::Nulls(2)];
        sink.write(&Batch::deltas(vec![0, 1], vec![1, -2], columns))
            .unwrap();
        sink.finish().unwrap();
        let lines = lines(&out);
        assert!(lines[0].contains("weight: 1, op: \"r\", latency: null"));
        assert!(lines[1].contains("weight: -2, op: \"w\", latency: null"));
    }

    #[test]
    fn a_row_that_came_twice_is_there_twice() {
        let out = Captured::default();
        let mut sink = (FORMAT.open)(answer(Shape::Stream), out.target(None)).unwrap();
        let columns = vec![Column::texts(["a", "b", "c"]), Column::ints(vec![1, 2, 3])];
        sink.write(&Batch::deltas(vec![0, 1, 2], vec![1, 2, 1], columns))
            .unwrap();
        sink.finish().unwrap();
        let lines = lines(&out);
        let ops: Vec<bool> = lines.iter().map(|l| l.contains("op: \"b\"")).collect();
        assert_eq!(ops, [false, true, true, false]);
    }

    #[test]
    fn an_empty_answer_is_a_valid_file() {
        let out = Captured::default();
        let mut sink = (FORMAT.open)(answer(Shape::Stream), out.target(None)).unwrap();
        sink.finish().unwrap();
        assert!(lines(&out).is_empty());
    }
}
