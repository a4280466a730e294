//! Results of a query as Flight messages that any Arrow reader can process as a stream: the schema,
//! then for each batch its text dictionaries and its rows, with the note as `app_metadata`.

use arrow_array::RecordBatch;
use arrow_flight::{FlightData, SchemaAsIpc};
use arrow_ipc::writer::{DictionaryTracker, IpcDataGenerator, IpcWriteContext, IpcWriteOptions};
use arrow_schema::{ArrowError, SchemaRef};
use serde_json::json;

use crate::event::ResultUpdate;

/// The approximate size limit of a message with rows; by default, clients reject more than 4 MiB.
const MESSAGE_BYTES_AIM: usize = 1 << 20;

/// Encodes the messages for one watcher.
pub(super) struct Encoder {
    schema: SchemaRef,
    generator: IpcDataGenerator,
    dictionaries: DictionaryTracker,
    options: IpcWriteOptions,
    context: IpcWriteContext,
}

impl Encoder {
    pub(super) fn new(schema: SchemaRef) -> Encoder {
        Encoder {
            schema,
            generator: IpcDataGenerator::default(),
            // Each batch includes the dictionaries of its own texts; readers replace earlier ones.
            dictionaries: DictionaryTracker::new(false),
            options: IpcWriteOptions::default(),
            context: IpcWriteContext::default(),
        }
    }

    /// The first message.
    pub(super) fn schema(&mut self) -> FlightData {
        let encoded = self.generator.schema_to_bytes_with_dictionary_tracker(
            &self.schema,
            &mut self.dictionaries,
            &self.options,
        );
        encoded.into()
    }

    /// The messages for an update. Many rows are split into several messages; the note is in the
    /// first, the others have `part`.
    pub(super) fn shown(&mut self, shown: &ResultUpdate) -> Result<Vec<FlightData>, ArrowError> {
        let batch = &shown.batch;
        if batch.schema_ref().fields() != self.schema.fields() {
            return Err(ArrowError::SchemaError(
                "the batch has other columns than the query".to_owned(),
            ));
        }
        let rows = batch.num_rows();
        let bytes = batch.get_array_memory_size();
        let parts = bytes.div_ceil(MESSAGE_BYTES_AIM).clamp(1, rows.max(1));
        let rows_each = rows.div_ceil(parts).max(1);
        let mut messages = self.part(&batch.slice(0, rows_each.min(rows)), &shown.note)?;
        for (part, offset) in (rows_each..rows).step_by(rows_each).enumerate() {
            let slice = batch.slice(offset, rows_each.min(rows - offset));
            messages.extend(self.part(&slice, &json!({ "part": part + 2 }))?);
        }
        Ok(messages)
    }

    fn part(
        &mut self,
        batch: &RecordBatch,
        note: &serde_json::Value,
    ) -> Result<Vec<FlightData>, ArrowError> {
        let (dictionaries, rows) = self.generator.encode(
            batch,
            &mut self.dictionaries,
            &self.options,
            &mut self.context,
        )?;
        let mut messages: Vec<FlightData> = dictionaries.into_iter().map(Into::into).collect();
        let rows: FlightData = rows.into();
        messages.push(rows.with_app_metadata(note.to_string()));
        Ok(messages)
    }
}

/// A schema in the encoding of `FlightInfo` and `SchemaResult`.
pub(super) fn schema_bytes(schema: &SchemaRef) -> Result<bytes::Bytes, ArrowError> {
    let options = IpcWriteOptions::default();
    let message: arrow_flight::IpcMessage = SchemaAsIpc::new(schema, &options).try_into()?;
    Ok(message.0)
}
