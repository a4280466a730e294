//! [`StreamSwitch`]: the kernel streams that are attached, for a command that reads some only at
//! times.

use std::sync::{Arc, Mutex, PoisonError};

/// Maximum size of the rings, and of the tables of groups, of a stream that can be detached: a
/// command that offers several such streams loads all of them.
pub(super) const BYTES_MAX: usize = 8 << 20;

/// Which kernel streams are attached. Their programs are loaded when they are opened; attaching
/// them later takes no privileges. Clones share the choice.
#[derive(Clone, Debug, Default)]
pub struct StreamSwitch(Option<Arc<Mutex<Vec<String>>>>);

impl StreamSwitch {
    /// No stream is attached until [`StreamSwitch::attach_only`]. The default is that each stream
    /// is attached while it is open.
    pub fn off() -> StreamSwitch {
        StreamSwitch(Some(Arc::default()))
    }

    /// Attaches the streams `names` and detaches all others, within the interval at which rows are
    /// read. Without effect on the default.
    pub fn attach_only(&self, names: &[&str]) {
        if let Some(attached) = &self.0 {
            let names = names.iter().map(|name| (*name).to_owned());
            *attached.lock().unwrap_or_else(PoisonError::into_inner) = names.collect();
        }
    }

    /// Whether the stream `name` is attached.
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.as_ref().is_none_or(|attached| {
            let attached = attached.lock().unwrap_or_else(PoisonError::into_inner);
            attached.iter().any(|n| n.eq_ignore_ascii_case(name))
        })
    }

    /// Whether streams can be detached.
    pub(super) fn is_used(&self) -> bool {
        self.0.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_attached_if_it_is_named() {
        let switch = StreamSwitch::off();
        let clone = switch.clone();
        assert!(!switch.has("FileIO") && switch.is_used());
        clone.attach_only(&["FileIO"]);
        assert!(switch.has("fileio") && !switch.has("IOpath"));
        clone.attach_only(&["IOpath"]);
        assert!(!switch.has("FileIO") && switch.has("IOpath"));
        let always = StreamSwitch::default();
        always.attach_only(&[]);
        assert!(always.has("FileIO") && !always.is_used());
    }
}
