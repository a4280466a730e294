//! Frames: a length of four bytes, little endian, followed by that number of bytes of JSON.

use std::io::{self, Read, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Bytes of the length.
pub const LENGTH_BYTES: usize = 4;

/// Initial buffer size.
const ROOM_BYTES: usize = 64 << 10;

/// `message` as one frame.
///
/// # Errors
/// [`io::ErrorKind::FileTooLarge`] if it is longer than `bytes_max`.
pub fn encode(message: &impl Serialize, bytes_max: usize) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; LENGTH_BYTES];
    serde_json::to_writer(&mut frame, message)?;
    let bytes = frame.len() - LENGTH_BYTES;
    match u32::try_from(bytes) {
        Ok(length) if bytes <= bytes_max => {
            frame[..LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
            Ok(frame)
        }
        _ => Err(io::ErrorKind::FileTooLarge.into()),
    }
}

/// Writes `message` as one frame.
///
/// # Errors
/// As [`encode`], with nothing written; else the error of the socket.
pub fn write(mut to: impl Write, message: &impl Serialize, bytes_max: usize) -> io::Result<()> {
    to.write_all(&encode(message, bytes_max)?)
}

/// Removes the first frame from `input` and returns its content; `None` if it is incomplete.
///
/// # Errors
/// If the frame is longer than `bytes_max`, as soon as its length was received.
pub fn take(input: &mut Vec<u8>, bytes_max: usize) -> io::Result<Option<Vec<u8>>> {
    let Some(length) = input.first_chunk::<LENGTH_BYTES>() else {
        return Ok(None);
    };
    let end = LENGTH_BYTES + checked(*length, bytes_max)?;
    if input.len() < end {
        return Ok(None);
    }
    let rest = input.split_off(end);
    let mut frame = std::mem::replace(input, rest);
    frame.drain(..LENGTH_BYTES);
    Ok(Some(frame))
}

/// The length of a frame, if it is at most `bytes_max`.
fn checked(length: [u8; LENGTH_BYTES], bytes_max: usize) -> io::Result<usize> {
    let bytes = u32::from_le_bytes(length) as usize;
    if bytes > bytes_max {
        let what = format!("a message of {bytes} bytes, more than {bytes_max}");
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    Ok(bytes)
}

/// Reads one frame; `None` when the other side has closed the socket.
///
/// # Errors
/// If the frame is longer than `bytes_max`, is truncated or does not contain a `T`, or on an error
/// of the socket.
pub fn read<T: DeserializeOwned>(mut from: impl Read, bytes_max: usize) -> io::Result<Option<T>> {
    let mut length = [0; LENGTH_BYTES];
    let first = loop {
        match from.read(&mut length) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // The other side closed its end with a message from here unread.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => break 0,
            other => break other?,
        }
    };
    if first == 0 {
        return Ok(None);
    }
    from.read_exact(&mut length[first..])?;
    let bytes = checked(length, bytes_max)?;
    // The announced length is not trusted for the allocation.
    let mut text = Vec::with_capacity(bytes.min(ROOM_BYTES));
    from.take(bytes as u64).read_to_end(&mut text)?;
    if text.len() < bytes {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let message = serde_json::from_slice::<T>(&text);
    let refused = |error| io::Error::new(io::ErrorKind::InvalidData, error);
    message.map(Some).map_err(refused)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::ScanScope;

    const REQUEST_BYTES_MAX: usize = 4 << 20;

    fn frame(length: u32, text: &str) -> Vec<u8> {
        [&length.to_le_bytes(), text.as_bytes()].concat()
    }

    #[test]
    fn a_request_arrives_as_it_was_sent() {
        let looks = vec![
            ScanScope::Pid(7),
            ScanScope::Device(8 << 20),
            ScanScope::All,
        ];
        let mut sent = Vec::new();
        write(&mut sent, &looks, REQUEST_BYTES_MAX).unwrap();
        let mut from = sent.as_slice();
        let received: Option<Vec<ScanScope>> = read(&mut from, REQUEST_BYTES_MAX).unwrap();
        assert_eq!(received, Some(looks));
        assert_eq!(
            read::<Vec<ScanScope>>(&mut from, REQUEST_BYTES_MAX).unwrap(),
            None
        );
    }

    #[test]
    fn an_empty_request_is_not_the_end() {
        let mut sent = Vec::new();
        write(&mut sent, &(), REQUEST_BYTES_MAX).unwrap();
        let mut from = sent.as_slice();
        assert_eq!(read::<()>(&mut from, REQUEST_BYTES_MAX).unwrap(), Some(()));
        assert_eq!(read::<()>(&mut from, REQUEST_BYTES_MAX).unwrap(), None);
    }

    #[test]
    fn what_is_too_long_cut_off_or_something_else_is_refused() {
        let refused = |bytes: &[u8]| read::<Vec<ScanScope>>(bytes, 64).unwrap_err().kind();
        use io::ErrorKind as Kind;
        assert_eq!(
            refused(&frame(65, &" ".repeat(65))),
            Kind::InvalidData,
            "too long"
        );
        assert_eq!(
            refused(&frame(u32::MAX, "[]")),
            Kind::InvalidData,
            "far too long"
        );
        assert_eq!(refused(&frame(8, "[]")), Kind::UnexpectedEof, "cut off");
        assert_eq!(
            refused(&[1, 0]),
            Kind::UnexpectedEof,
            "cut off in its length"
        );
        assert_eq!(refused(&frame(5, "[[[[[")), Kind::InvalidData, "no JSON");
        assert_eq!(
            refused(&frame(20, r#"[{"Execute":"quit"}]"#)),
            Kind::InvalidData
        );
    }

    #[test]
    fn frames_are_parsed_from_bytes_that_arrive_in_pieces() {
        let sent = [frame(2, "[]"), frame(0, ""), frame(3, "[7]")].concat();
        let (mut input, mut taken) = (Vec::new(), Vec::new());
        for byte in sent {
            input.push(byte);
            taken.extend(take(&mut input, 3).unwrap());
        }
        assert_eq!(taken, [&b"[]"[..], b"", b"[7]"]);
        assert!(input.is_empty());
        assert!(take(&mut frame(4, ""), 3).is_err(), "before its content");
    }

    #[test]
    fn what_is_too_long_is_not_written() {
        let mut sent = Vec::new();
        let error = write(&mut sent, &"x".repeat(64), 64).unwrap_err();
        assert_eq!((error.kind(), sent.len()), (io::ErrorKind::FileTooLarge, 0));
    }
}
