//! `--format parquet`: the answer as a Parquet file, complete once it is finished.
//!
//! Columns as in [`crate::arrow`].

use std::sync::Arc;

use ::parquet::arrow::ArrowWriter;
use ::parquet::basic::{Compression, ZstdLevel};
use ::parquet::errors::ParquetError;
use ::parquet::file::properties::WriterProperties;
use arrow_schema::SchemaRef;
use weir_model::Batch;

use crate::{ResultSchema, Sink, SinkError, SinkFormat, Target, arrow};

/// `--format parquet`.
pub static FORMAT: SinkFormat = SinkFormat {
    name: "parquet",
    doc: "a Parquet file, for -o or a pipe, with columns `instant` and `weight` in addition",
    open: |answer, target| Ok(Box::new(Parquet::open(answer, target)?)),
    resume: None,
};

/// The largest row group in rows and bytes; it is held in memory until it is full.
const ROW_GROUP_ROWS: usize = 1 << 17;
const ROW_GROUP_BYTES: usize = 64 << 20;

struct Parquet {
    name: String,
    answer: ResultSchema,
    schema: SchemaRef,
    writer: ArrowWriter<Target>,
}

impl Parquet {
    fn open(answer: ResultSchema, target: Target) -> Result<Parquet, SinkError> {
        if target.screen().is_some() {
            return Err(SinkError::Unsuited {
                what: "Parquet cannot be written to a terminal".into(),
                remedy: "use -o FILE.parquet".into(),
            });
        }
        let name = target.name().to_owned();
        let schema = Arc::new(arrow::schema(&answer));
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
}

impl Sink for Parquet {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        for piece in arrow::each_once(&self.answer, batch) {
            let rows = arrow::record_batch(&self.answer, &self.schema, &piece);
            let written = self.writer.write(&rows);
            written.map_err(|e| failed(&self.name, e))?;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), SinkError> {
        self.writer.finish().map_err(|e| failed(&self.name, e))?;
        self.writer.inner_mut().flush()
    }
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
    use crate::InstantUnit;
    use crate::target::capture::Captured;
    use ::parquet::file::reader::{FileReader, SerializedFileReader};
    use weir_model::{Column, Field, Schema, Shape, Type, Unit};

    fn answer(shape: Shape) -> ResultSchema {
        let latency = Field::new("latency", Type::Int).unit(Unit::Nanoseconds);
        ResultSchema {
            schema: Arc::new(Schema::new(vec![Field::new("op", Type::Text), latency])),
            shape,
            clock: InstantUnit::Nanoseconds,
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
    fn a_row_of_weight_two_is_written_twice() {
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
