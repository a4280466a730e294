//! Plain data as bytes for another process of weir: MessagePack (<https://msgpack.org>), with the
//! names of fields and variants, so that a reader ignores fields that it does not know.

use std::io::Cursor;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The bytes of a value.
///
/// # Errors
/// If a part of the value cannot be sent to another process, with the reason.
pub fn encode(value: &impl Serialize) -> Result<Vec<u8>, String> {
    rmp_serde::to_vec_named(value).map_err(|error| error.to_string())
}

/// The value of untrusted bytes with at most `depth_max` nested lists and maps.
///
/// # Errors
/// If the bytes are no such value, with the reason.
pub fn decode<T: DeserializeOwned>(bytes: &[u8], depth_max: usize) -> Result<T, String> {
    let mut input = rmp_serde::Deserializer::new(Cursor::new(bytes));
    input.set_max_depth(depth_max);
    let value = T::deserialize(&mut input).map_err(|error| error.to_string())?;
    match input.position() == bytes.len() as u64 {
        true => Ok(value),
        false => Err("bytes follow the value".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, serde::Deserialize)]
    struct Old {
        size: i64,
    }

    #[derive(Serialize, serde::Deserialize)]
    struct New {
        color: Option<String>,
        size: i64,
        #[serde(default)]
        weights: Vec<Vec<i64>>,
    }

    #[test]
    fn a_field_of_a_later_version_is_ignored_and_a_missing_one_has_its_default() {
        let new = New {
            color: Some("red".into()),
            size: 3,
            weights: vec![vec![1]],
        };
        let bytes = encode(&new).unwrap();
        assert_eq!(decode(&bytes, 8), Ok(Old { size: 3 }));
        let new: New = decode(&encode(&Old { size: 4 }).unwrap(), 8).unwrap();
        assert_eq!((new.color, new.size, new.weights), (None, 4, vec![]));
    }

    #[test]
    fn what_is_too_deep_or_too_long_is_rejected() {
        let new = New {
            color: None,
            size: 3,
            weights: vec![vec![1]],
        };
        let mut bytes = encode(&new).unwrap();
        assert!(decode::<New>(&bytes, 2).is_err());
        bytes.push(0);
        assert_eq!(
            decode::<Old>(&bytes, 8).unwrap_err(),
            "bytes follow the value"
        );
        assert!(decode::<Old>(&bytes[..5], 8).is_err());
    }
}
