//! [`TopicMessage`]: what is forwarded, and its form in the spool.
//!
//! A message in a file is the length of what follows the checksum (4 bytes, little endian), its
//! CRC-32, the requests that it stands for (8 bytes), the partition (8 bytes), then topic, key and
//! value, the first two after their length (4 bytes).

/// The bytes before the content.
pub const HEADER_BYTES: usize = 8;

/// The longest message that is read: one that is longer was not written by this program.
const CONTENT_BYTES_MAX: usize = 64 << 20;

/// A message for a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicMessage {
    /// The topic.
    pub topic: String,
    /// Where in the topic.
    pub partition: TargetPartition,
    /// The key; a later message with the same key replaces this one.
    pub key: Vec<u8>,
    /// The value.
    pub value: Vec<u8>,
    /// The requests that it stands for.
    pub requests: u64,
}

/// The partition of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetPartition {
    /// The one with this number, modulo the number of partitions.
    Of(u32),
    /// Each of them.
    All,
}

impl TargetPartition {
    fn number(self) -> u64 {
        match self {
            TargetPartition::Of(number) => u64::from(number),
            TargetPartition::All => u64::MAX,
        }
    }
}

impl TopicMessage {
    /// Appends the message as it is in the spool.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend([0; HEADER_BYTES]);
        out.extend(self.requests.to_le_bytes());
        out.extend(self.partition.number().to_le_bytes());
        for part in [self.topic.as_bytes(), &self.key] {
            out.extend((part.len() as u32).to_le_bytes());
            out.extend(part);
        }
        out.extend(&self.value);
        let content = &out[start + HEADER_BYTES..];
        let (length, sum) = (content.len() as u32, crc32fast::hash(content));
        out[start..start + 4].copy_from_slice(&length.to_le_bytes());
        out[start + 4..start + 8].copy_from_slice(&sum.to_le_bytes());
    }

    /// The first message of `bytes` and its length there; `None` if there is no whole one.
    pub fn decode(bytes: &[u8]) -> Option<(TopicMessage, usize)> {
        let mut header = bytes;
        let length = number(&mut header)? as usize;
        let sum = number(&mut header)?;
        if length > CONTENT_BYTES_MAX {
            return None;
        }
        let mut content = header.get(..length)?;
        if crc32fast::hash(content) != sum {
            return None;
        }
        let requests = u64::from_le_bytes(*content.split_first_chunk()?.0);
        let partition = u64::from_le_bytes(*content[8..].split_first_chunk()?.0);
        content = &content[16..];
        let topic = part(&mut content)?;
        let key = part(&mut content)?.to_vec();
        let message = TopicMessage {
            topic: std::str::from_utf8(topic).ok()?.to_owned(),
            partition: u32::try_from(partition).map_or(TargetPartition::All, TargetPartition::Of),
            key,
            value: content.to_vec(),
            requests,
        };
        Some((message, HEADER_BYTES + length))
    }
}

fn number(bytes: &mut &[u8]) -> Option<u32> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(u32::from_le_bytes(*first))
}

fn part<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = number(bytes)? as usize;
    let (part, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_read_as_it_was_written() {
        let first = TopicMessage {
            topic: "weir.load".into(),
            partition: TargetPartition::Of(7),
            key: b"a/1/2/3".to_vec(),
            value: vec![0, 255, 1],
            requests: 40,
        };
        let second = TopicMessage {
            partition: TargetPartition::All,
            key: Vec::new(),
            value: Vec::new(),
            ..first.clone()
        };
        let mut bytes = Vec::new();
        first.encode(&mut bytes);
        let length = bytes.len();
        second.encode(&mut bytes);
        assert_eq!(TopicMessage::decode(&bytes), Some((first, length)));
        let rest = bytes.len() - length;
        assert_eq!(TopicMessage::decode(&bytes[length..]), Some((second, rest)));
    }

    #[test]
    fn a_torn_or_damaged_message_is_none() {
        let message = TopicMessage {
            topic: "t".into(),
            partition: TargetPartition::Of(0),
            key: b"k".to_vec(),
            value: b"value".to_vec(),
            requests: 1,
        };
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        for length in 0..bytes.len() {
            assert_eq!(TopicMessage::decode(&bytes[..length]), None, "{length}");
        }
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            assert_eq!(TopicMessage::decode(&damaged), None, "{at}");
        }
    }
}
