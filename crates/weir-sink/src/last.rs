//! [`FinalRelation`]: the final content of a relation, written once to any sink.

use weir_model::{Batch, Shape};

use crate::view::deltas;
use crate::{Incomplete, RelationView, ResultSchema, Sink, SinkError, SinkFormat, Target};

/// Rows per batch.
const CHUNK: usize = 4_096;

/// Maintains a relation and writes its rows, in display order, when it is finished. They have the
/// instant of the last change that it received, and no weight.
pub struct FinalRelation {
    answer: ResultSchema,
    view: RelationView,
    inner: Box<dyn Sink>,
}

impl FinalRelation {
    /// Opens `format` for the last state of the relation that `answer` describes.
    ///
    /// # Errors
    /// If the answer is a stream, which has no final content, or `format` fails.
    pub fn open(
        format: &SinkFormat,
        answer: ResultSchema,
        target: Target,
    ) -> Result<FinalRelation, SinkError> {
        if answer.shape == Shape::Stream {
            return Err(SinkError::Unsuited {
                what: "the result of the query is a stream, which has no final content".into(),
                remedy: "query a relation (with a window or an aggregate, without Istream, \
                         Dstream and Rstream), or omit --final"
                    .into(),
            });
        }
        let rows = ResultSchema {
            shape: Shape::Stream,
            ..answer.clone()
        };
        Ok(FinalRelation {
            inner: (format.open)(rows, target)?,
            answer,
            view: RelationView::default(),
        })
    }
}

impl Sink for FinalRelation {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        self.view.apply(batch);
        Ok(())
    }

    fn finish(&mut self) -> Result<(), SinkError> {
        let order = |a: &[_], b: &[_]| self.answer.compare(a, b);
        let rows = self.view.first(usize::MAX, order);
        for chunk in rows.chunks(CHUNK) {
            let rows = chunk.iter().copied();
            let batch = deltas(&self.answer.schema, self.view.instant(), rows);
            self.inner.write(&batch)?;
        }
        self.inner.finish()
    }

    fn incomplete(&mut self, slide: Incomplete) {
        self.inner.incomplete(slide);
    }

    fn remarks(&self) -> Vec<String> {
        self.view.remarks()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::capture::Captured;
    use crate::{InstantUnit, SortKey};
    use std::sync::Arc;
    use weir_model::{Column, Field, Schema, Type};

    fn answer(shape: Shape) -> ResultSchema {
        ResultSchema {
            schema: Arc::new(Schema::new(vec![Field::new("n", Type::Int)])),
            shape,
            clock: InstantUnit::Ticks,
            order: vec![SortKey {
                column: 0,
                descending: true,
                nulls_first: false,
            }],
            raw: false,
        }
    }

    #[test]
    fn only_the_final_state_is_written_in_order() {
        let out = Captured::default();
        let target = out.target(None);
        let mut last =
            FinalRelation::open(&crate::csv::FORMAT, answer(Shape::Relation), target).unwrap();
        let columns = vec![Column::ints(vec![1, 2, 3, 1])];
        last.write(&Batch::deltas(vec![1, 2, 3, 4], vec![1, 1, 2, -1], columns))
            .unwrap();
        last.finish().unwrap();
        assert_eq!(out.text(), "instant,n\n4,3\n4,3\n4,2\n");
    }

    #[test]
    fn a_stream_has_no_final_state() {
        let target = Captured::default().target(None);
        let error = FinalRelation::open(&crate::csv::FORMAT, answer(Shape::Stream), target).err();
        assert!(matches!(error, Some(SinkError::Unsuited { .. })));
    }
}
