//! The binary frames of the WebSocket: a header, then a self-contained Arrow IPC stream.
//!
//! | bytes | little-endian |
//! | --- | --- |
//! | 0-3 | the subscription |
//! | 4-7 | flags: [`SNAPSHOT`], [`TRUNCATED`] |
//! | 8-15 | the sequence number of the frame, to acknowledge |
//! | 16-23 | what the subscription skipped since its last frame: states of a relation, rows of a stream |
//! | 24-31 | the number of rows of the relation, or the number of rows of the stream so far |
//! | 32- | the Arrow stream: columns as of `weir query --format arrow` |

use std::sync::Arc;

use arrow_ipc::writer::StreamWriter;
use weir_model::{Batch, Shape};
use weir_sink::{ResultSchema, arrow};

/// The frame replaces everything that the client has of the subscription: the state of a relation,
/// or the most recent rows of a stream.
pub const SNAPSHOT: u32 = 1;

/// The relation has more rows than the frame.
pub const TRUNCATED: u32 = 2;

/// The size of the header in bytes. A multiple of 8, so that the Arrow buffers are aligned.
pub const HEADER_BYTES: usize = 32;

/// The header of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameHeader {
    /// The subscription.
    pub subscription: u32,
    /// [`SNAPSHOT`], [`TRUNCATED`].
    pub flags: u32,
    /// Its number in the subscription, from 1 on.
    pub sequence: u64,
    /// The states or rows skipped since the previous frame.
    pub skipped: u64,
    /// The number of rows of the relation, or of the stream so far.
    pub rows: u64,
}

impl FrameHeader {
    /// The header's bytes.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..4].copy_from_slice(&self.subscription.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.flags.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.skipped.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.rows.to_le_bytes());
        bytes
    }

    /// The header of a frame; `None` if it is shorter.
    pub fn decode(frame: &[u8]) -> Option<FrameHeader> {
        let short = |at: usize| Some(u32::from_le_bytes(frame.get(at..at + 4)?.try_into().ok()?));
        let long = |at: usize| Some(u64::from_le_bytes(frame.get(at..at + 8)?.try_into().ok()?));
        Some(FrameHeader {
            subscription: short(0)?,
            flags: short(4)?,
            sequence: long(8)?,
            skipped: long(16)?,
            rows: long(24)?,
        })
    }
}

/// A frame with the rows of the batches. Those of a relation are its state: each row with its
/// number of copies.
pub fn encode(header: FrameHeader, answer: &ResultSchema, batches: &[Batch]) -> Vec<u8> {
    const WRITES: &str = "writing to memory does not fail";
    let schema = Arc::new(arrow::schema(answer));
    let bytes = header.encode().to_vec();
    let mut writer = StreamWriter::try_new(bytes, &schema).expect(WRITES);
    for batch in batches {
        let pieces = match answer.shape {
            Shape::Stream => arrow::each_once(answer, batch),
            Shape::Relation => vec![batch.clone()],
        };
        for piece in pieces {
            let rows = arrow::record_batch(answer, &schema, &piece);
            writer.write(&rows).expect(WRITES);
        }
    }
    writer.into_inner().expect(WRITES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_reads_back() {
        let header = FrameHeader {
            subscription: 7,
            flags: SNAPSHOT | TRUNCATED,
            sequence: 1 << 40,
            skipped: 3,
            rows: u64::MAX,
        };
        assert_eq!(FrameHeader::decode(&header.encode()), Some(header));
        assert_eq!(FrameHeader::decode(&header.encode()[1..]), None);
    }
}
