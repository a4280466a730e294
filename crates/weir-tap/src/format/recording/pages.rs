//! [`check`]: bounds the page sizes in the headers of a row group, before the Parquet library
//! allocates them: up to 2 GiB for each, regardless of the size of the file.
//!
//! Page headers are structures of Thrift's compact protocol (parquet-format, `PageHeader` in
//! parquet.thrift; thrift-compact-protocol.md). Only the two sizes are read, the rest is skipped.

use std::io::Read;

use parquet::arrow::ProjectionMask;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::reader::ChunkReader;

/// Maximum size of a page, compressed or not. Writers create pages of about 1 MiB; the largest by
/// default, those of DuckDB and Arrow, have a few MiB.
pub const PAGE_BYTES_MAX: u64 = 64 << 20;

/// Maximum size of the pages in memory at the same time: the largest page of each column that is
/// read, and its dictionary.
pub const PAGES_BYTES_MAX: u64 = 512 << 20;

/// Maximum size of a page's header; its statistics contain the longest texts of the page.
const HEADER_BYTES_MAX: u64 = 1 << 20;

/// Maximum nesting of structures in a header. The format has three levels.
const DEPTH_MAX: usize = 8;

/// Types of the compact protocol.
const TRUE: u8 = 1;
const FALSE: u8 = 2;
const BYTE: u8 = 3;
const I16: u8 = 4;
const I64: u8 = 6;
const DOUBLE: u8 = 7;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const SET: u8 = 10;
const MAP: u8 = 11;
const STRUCT: u8 = 12;

/// Type 1 of `PageHeader.type`.
const DICTIONARY_PAGE: i64 = 2;

/// Checks the page sizes of the columns of a row group that are read.
///
/// # Errors
/// If a page, or the pages in memory at the same time, exceed the bounds, or a header cannot be
/// read.
pub fn check(
    file: &impl ChunkReader,
    group: &RowGroupMetaData,
    read: &ProjectionMask,
) -> Result<()> {
    let mut together = 0;
    for (leaf, column) in group.columns().iter().enumerate() {
        if !read.leaf_included(leaf) {
            continue;
        }
        let (start, bytes) = column.byte_range();
        let name = column.column_path().string();
        together += column_pages(file, start, bytes).map_err(|error| {
            let why = match error {
                ParquetError::General(why) => why,
                other => other.to_string(),
            };
            ParquetError::General(format!("column {name}: {why}"))
        })?;
    }
    match together > PAGES_BYTES_MAX {
        true => Err(too_large(
            "pages of all columns together",
            together,
            PAGES_BYTES_MAX,
        )),
        false => Ok(()),
    }
}

/// The size of the largest page of a column and of its dictionary.
fn column_pages(file: &impl ChunkReader, start: u64, bytes: u64) -> Result<u64> {
    let beyond = || ParquetError::General("a page reaches beyond its column".into());
    let end = start.checked_add(bytes).ok_or_else(beyond)?;
    let (mut at, mut largest, mut dictionary) = (start, 0, 0);
    while at < end {
        let page = Header::read(file.get_read(at)?, HEADER_BYTES_MAX.min(end - at))?;
        for size in [page.uncompressed_bytes, page.compressed_bytes] {
            if size > PAGE_BYTES_MAX {
                return Err(too_large("a page", size, PAGE_BYTES_MAX));
            }
        }
        // Both are below 2^27, so the sum does not overflow.
        let memory = page.uncompressed_bytes + page.compressed_bytes;
        match page.kind {
            DICTIONARY_PAGE => dictionary = memory.max(dictionary),
            _ => largest = memory.max(largest),
        }
        at += page.header_bytes + page.compressed_bytes;
    }
    match at > end {
        true => Err(beyond()),
        false => Ok(largest + dictionary),
    }
}

fn too_large(what: &str, bytes: u64, most: u64) -> ParquetError {
    ParquetError::General(format!(
        "{what} of {bytes} bytes; weir reads at most {most}"
    ))
}

/// The fields of a page's header.
#[derive(Debug, Default, PartialEq)]
struct Header {
    kind: i64,
    uncompressed_bytes: u64,
    compressed_bytes: u64,
    /// Length of the header.
    header_bytes: u64,
}

impl Header {
    fn read(input: impl Read, bytes_max: u64) -> Result<Header> {
        let mut input = Compact {
            input,
            read: 0,
            bytes_max,
        };
        let mut header = Header::default();
        let mut id = 0;
        while let Some((field, ty)) = input.field(id)? {
            id = field;
            match (field, ty) {
                (1, I16..=I64) => header.kind = input.number()?,
                (2, I16..=I64) => header.uncompressed_bytes = input.size()?,
                (3, I16..=I64) => header.compressed_bytes = input.size()?,
                (_, ty) => input.skip(ty, DEPTH_MAX)?,
            }
        }
        header.header_bytes = input.read;
        Ok(header)
    }
}

/// Decodes values of the compact protocol.
struct Compact<R> {
    input: R,
    read: u64,
    bytes_max: u64,
}

impl<R: Read> Compact<R> {
    fn byte(&mut self) -> Result<u8> {
        let mut byte = [0];
        self.bytes(1, |input| input.read_exact(&mut byte))?;
        Ok(byte[0])
    }

    /// Reads `count` bytes with `read`, within the bound.
    fn bytes(
        &mut self,
        count: u64,
        read: impl FnOnce(&mut R) -> std::io::Result<()>,
    ) -> Result<()> {
        if count > self.bytes_max - self.read {
            return Err(malformed("it is longer than its column or 1 MiB"));
        }
        self.read += count;
        Ok(read(&mut self.input)?)
    }

    fn skip_bytes(&mut self, count: u64) -> Result<()> {
        self.bytes(count, |input| {
            let copied = std::io::copy(&mut input.take(count), &mut std::io::sink())?;
            match copied == count {
                true => Ok(()),
                false => Err(std::io::ErrorKind::UnexpectedEof.into()),
            }
        })
    }

    /// A variable-length number of at most 64 bits.
    fn varint(&mut self) -> Result<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(malformed("a number of more than 64 bits"))
    }

    /// A signed number, zigzag-encoded.
    fn number(&mut self) -> Result<i64> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    fn size(&mut self) -> Result<u64> {
        u64::try_from(self.number()?).map_err(|_| malformed("a negative size"))
    }

    /// The number and the type of the next field of a structure, `None` at its end. `last` is the
    /// number of the previous field.
    fn field(&mut self, last: i64) -> Result<Option<(i64, u8)>> {
        let head = self.byte()?;
        let ty = head & 0xf;
        Ok(match (ty, head >> 4) {
            (0, _) => None,
            (_, 0) => Some((self.number()?, ty)),
            (_, delta) => Some((last.wrapping_add(i64::from(delta)), ty)),
        })
    }

    /// Skips the value of a field.
    fn skip(&mut self, ty: u8, depth: usize) -> Result<()> {
        let deeper = depth
            .checked_sub(1)
            .ok_or_else(|| malformed("structures within structures"))?;
        match ty {
            // The value of a boolean field is encoded in its type.
            TRUE | FALSE => Ok(()),
            BYTE => self.skip_bytes(1),
            I16..=I64 => self.varint().map(drop),
            DOUBLE => self.skip_bytes(8),
            BINARY => {
                let bytes = self.varint()?;
                self.skip_bytes(bytes)
            }
            LIST | SET => {
                let head = self.byte()?;
                let count = match head >> 4 {
                    15 => self.varint()?,
                    count => u64::from(count),
                };
                self.skip_elements(count, &[head & 0xf], deeper)
            }
            MAP => match self.varint()? {
                0 => Ok(()),
                count => {
                    let types = self.byte()?;
                    self.skip_elements(count, &[types >> 4, types & 0xf], deeper)
                }
            },
            STRUCT => {
                let mut id = 0;
                while let Some((field, ty)) = self.field(id)? {
                    id = field;
                    self.skip(ty, deeper)?;
                }
                Ok(())
            }
            ty => Err(malformed(&format!("a value of unknown type {ty}"))),
        }
    }

    /// Skips elements of a collection, each with values of these types. Each has at least one byte,
    /// so the bound of the header bounds their number.
    fn skip_elements(&mut self, count: u64, types: &[u8], depth: usize) -> Result<()> {
        for _ in 0..count {
            for ty in types {
                match *ty {
                    // Outside of structures a boolean is a byte.
                    TRUE | FALSE => self.skip_bytes(1)?,
                    ty => self.skip(ty, depth)?,
                }
            }
        }
        Ok(())
    }
}

fn malformed(what: &str) -> ParquetError {
    ParquetError::General(format!("the header of a page is malformed: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use parquet::file::metadata::ColumnChunkMetaData;
    use parquet::schema::parser::parse_message_type;
    use parquet::schema::types::SchemaDescriptor;
    use std::sync::Arc;

    /// A header of a data page: type 0, 200 bytes, 100 compressed, no checksum, and in field 5 the
    /// structure `DataPageHeader` with 3 values, two encodings and statistics with a text.
    const HEADER: &[u8] = &[
        0x15, 0x00, 0x15, 0x90, 0x03, 0x15, 0xc8, 0x01, 0x2c, 0x15, 0x06, 0x15, 0x00, 0x15, 0x06,
        0x2c, 0x28, 0x03, b'a', b'b', b'c', 0x00, 0x00, 0x00,
    ];

    fn read(bytes: &[u8]) -> Result<Header> {
        Header::read(bytes, HEADER_BYTES_MAX)
    }

    #[test]
    fn sizes_of_a_page_are_read() {
        let header = Header {
            kind: 0,
            uncompressed_bytes: 200,
            compressed_bytes: 100,
            header_bytes: HEADER.len() as u64,
        };
        assert_eq!(read(&[HEADER, b"data"].concat()).unwrap(), header);
        for cut in 0..HEADER.len() {
            assert!(read(&HEADER[..cut]).is_err(), "{cut}");
        }
    }

    #[test]
    fn unknown_fields_of_any_type_are_skipped() {
        let unknown: &[&[u8]] = &[
            &[0x71],                         // true
            &[0x73, 7],                      // a byte
            &[0x77, 1, 2, 3, 4, 5, 6, 7, 8], // a double
            &[0x79, 0x21, 1, 2],             // a list of two truth values
            &[
                0x7a, 0xf5, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
            ], // a long set
            &[0x7b, 1, 0x85, 1, b'k', 2],    // a map from a text to a number
            &[0x7b, 0],                      // an empty map
            &[0x05, 0x80, 0x02, 9],          // a field by its whole number
        ];
        for bytes in unknown {
            let header = [&[0x15, 0, 0x15, 4, 0x15, 2], *bytes, &[0]].concat();
            let read = read(&header).unwrap_or_else(|e| panic!("{bytes:x?}: {e}"));
            assert_eq!((read.uncompressed_bytes, read.compressed_bytes), (2, 1));
            assert_eq!(read.header_bytes, header.len() as u64, "{bytes:x?}");
        }
    }

    /// The header of a page of 60 MiB with a compressed size of 0.
    const LARGE: &[u8] = &[0x15, 0, 0x15, 0x80, 0x80, 0x80, 0x3c, 0x15, 0, 0];

    #[test]
    fn the_largest_pages_of_all_columns_together_are_bounded() {
        let group = |columns: usize| {
            let fields: String = (0..columns)
                .map(|n| format!("required int64 c{n};"))
                .collect();
            let schema = parse_message_type(&format!("message m {{ {fields} }}")).unwrap();
            let schema = Arc::new(SchemaDescriptor::new(Arc::new(schema)));
            let column = |n| {
                let column = ColumnChunkMetaData::builder(schema.column(n));
                column
                    .set_total_compressed_size(2 * LARGE.len() as i64)
                    .build()
                    .unwrap()
            };
            let metadata = (0..columns).map(column).collect();
            let group = RowGroupMetaData::builder(schema.clone()).set_column_metadata(metadata);
            group.build().unwrap()
        };
        // Each column has the same two pages, of which one is in memory at a time.
        let file = Bytes::from([LARGE, LARGE].concat());
        let all = ProjectionMask::all();
        check(&file, &group(8), &all).unwrap();
        let error = check(&file, &group(9), &all).unwrap_err().to_string();
        assert!(error.contains("together of 566231040 bytes"), "{error}");
        let cut = file.slice(..LARGE.len() + 3);
        assert!(check(&cut, &group(1), &all).is_err());
    }

    #[test]
    fn headers_without_sense_are_refused() {
        let deep = [0x1c; 40];
        let wrong: &[&[u8]] = &[
            &[0x25, 1, 0], // a negative size
            &[
                0x15, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0,
            ], // 77 bits
            &[0x18, 0xff, 0xff, 0xff, 0xff, 0x0f], // a text of 4 GiB
            &[0x19, 0xf1, 0xff, 0xff, 0xff, 0xff, 0x0f], // a list of 2^32 elements
            &[0x1f, 0],    // no such type
            &deep,
        ];
        for bytes in wrong {
            assert!(read(bytes).is_err(), "{bytes:x?}");
        }
    }
}
