//! `--format arrow`: the answer as an Arrow IPC stream, which pyarrow, DuckDB and Polars read.
//!
//! Columns as in [`crate::arrow`]. The changes of a relation are written between instants: after
//! each record batch, the sum of all changes is a state that the relation has had.

use std::sync::Arc;

use arrow_ipc::writer::StreamWriter;
use arrow_schema::{ArrowError, SchemaRef};
use weir_model::{Batch, Shape};

use crate::view::joined;
use crate::{ResultSchema, Sink, SinkError, SinkFormat, Target, arrow};

/// `--format arrow`.
pub static FORMAT: SinkFormat = SinkFormat {
    name: "arrow",
    doc: "an Arrow IPC stream, for a pipe or -o, with columns `instant` and `weight` in addition",
    open: |answer, target| Ok(Box::new(ArrowStream::open(answer, target)?)),
    resume: None,
};

/// The maximum number of changes that wait for the end of an instant.
const WAITING_ROWS_MAX: usize = 1 << 20;

struct ArrowStream {
    name: String,
    answer: ResultSchema,
    schema: SchemaRef,
    writer: StreamWriter<Target>,
    /// Changes of a relation since the last flush.
    waiting: Vec<Batch>,
}

impl ArrowStream {
    fn open(answer: ResultSchema, target: Target) -> Result<ArrowStream, SinkError> {
        if target.screen().is_some() {
            return Err(SinkError::Unsuited {
                what: "an Arrow stream cannot be written to a terminal".into(),
                remedy: "use a pipe or -o FILE.arrow".into(),
            });
        }
        let name = target.name().to_owned();
        let schema = Arc::new(arrow::schema(&answer));
        let writer = StreamWriter::try_new(target, &schema).map_err(|e| failed(&name, e))?;
        Ok(ArrowStream {
            name,
            answer,
            schema,
            writer,
            waiting: Vec::new(),
        })
    }

    fn put(&mut self, batch: &Batch) -> Result<(), SinkError> {
        for piece in arrow::each_once(&self.answer, batch) {
            let rows = arrow::record_batch(&self.answer, &self.schema, &piece);
            let written = self.writer.write(&rows);
            written.map_err(|e| failed(&self.name, e))?;
        }
        Ok(())
    }

    fn put_waiting(&mut self) -> Result<(), SinkError> {
        match &std::mem::take(&mut self.waiting)[..] {
            [] => Ok(()),
            [batch] => self.put(batch),
            batches => self.put(&joined(&self.answer.schema, batches)),
        }
    }
}

impl Sink for ArrowStream {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        if self.answer.shape == Shape::Stream {
            return self.put(batch);
        }
        self.waiting.push(batch.clone());
        match self.waiting.iter().map(Batch::len).sum::<usize>() > WAITING_ROWS_MAX {
            true => self.put_waiting(),
            false => Ok(()),
        }
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        self.put_waiting()?;
        self.writer.get_mut().flush()
    }

    fn finish(&mut self) -> Result<(), SinkError> {
        self.put_waiting()?;
        self.writer.finish().map_err(|e| failed(&self.name, e))?;
        self.flush()
    }
}

fn failed(name: &str, error: ArrowError) -> SinkError {
    let name = name.to_owned();
    match error {
        ArrowError::IoError(_, error) => SinkError::io(&name, error),
        error => SinkError::Arrow { name, error },
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use arrow_ipc::reader::StreamReader;
    use weir_model::{Column, Field, Schema, Type};

    use super::*;
    use crate::target::capture::Captured;
    use crate::{InstantUnit, RelationView};

    fn answer(shape: Shape) -> ResultSchema {
        ResultSchema {
            schema: Arc::new(Schema::new(vec![
                Field::new("op", Type::Text),
                Field::new("n", Type::Int),
            ])),
            shape,
            clock: InstantUnit::Nanoseconds,
            order: vec![],
            raw: false,
        }
    }

    fn batches(captured: &Captured) -> Vec<Batch> {
        let reader = StreamReader::try_new(Cursor::new(captured.bytes()), None).unwrap();
        let answer = arrow::answer_of(&reader.schema()).unwrap();
        let batches = reader.map(|rows| arrow::batch_of(&answer, &rows.unwrap()).unwrap());
        batches.collect()
    }

    fn deltas(at: i64, rows: &[(i64, &str, i64)]) -> Batch {
        let weights: Vec<i64> = rows.iter().map(|row| row.0).collect();
        let columns = vec![
            Column::texts(rows.iter().map(|row| row.1)),
            Column::ints(rows.iter().map(|row| row.2).collect()),
        ];
        Batch::deltas(vec![at; rows.len()], weights, columns)
    }

    #[test]
    fn each_batch_of_a_relation_ends_between_instants() {
        let out = Captured::default();
        let mut sink = (FORMAT.open)(answer(Shape::Relation), out.target(None)).unwrap();
        sink.write(&deltas(1, &[(1, "r", 5)])).unwrap();
        sink.flush().unwrap();
        // One instant in two parts.
        sink.write(&deltas(2, &[(-1, "r", 5)])).unwrap();
        sink.write(&deltas(2, &[(2, "r", 6)])).unwrap();
        sink.flush().unwrap();
        sink.finish().unwrap();
        let mut view = RelationView::default();
        let states: Vec<i64> = batches(&out)
            .iter()
            .map(|batch| {
                view.apply(batch);
                view.len()
            })
            .collect();
        assert_eq!(states, [1, 2]);
        assert_eq!(view.rows().next().unwrap().0[1], weir_model::Value::Int(6));
    }

    #[test]
    fn a_stream_is_written_row_by_row_with_its_texts() {
        let out = Captured::default();
        let mut sink = (FORMAT.open)(answer(Shape::Stream), out.target(None)).unwrap();
        for (op, n) in [("r", 1), ("w", 2)] {
            let columns = vec![Column::texts([op]), Column::ints(vec![n])];
            sink.write(&Batch::stream(vec![n], columns)).unwrap();
            sink.flush().unwrap();
        }
        sink.finish().unwrap();
        let rows: Vec<String> = batches(&out)
            .iter()
            .map(|batch| format!("{} {}", batch.row(0)[0], batch.row(0)[1]))
            .collect();
        assert_eq!(rows, ["r 1", "w 2"]);
    }
}
