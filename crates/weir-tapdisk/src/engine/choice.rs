//! [`EngineChoice`]: which engine executes requests, and whether through the page cache.

use std::fmt;
use std::str::FromStr;

use crate::disk::{Alignment, DiskError};

/// The user's setting of the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EngineOption {
    /// The best one for the image.
    #[default]
    Auto,
    /// io_uring(7) only.
    Uring,
    /// System calls of the queue's own thread.
    Sync,
}

/// The user's setting of the host's page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheOption {
    /// The best one for the image.
    #[default]
    Auto,
    /// Bypassed: `O_DIRECT`.
    Direct,
    /// Used. A flush writes it to the image.
    PageCache,
}

/// The engine that executes requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineKind {
    /// io_uring(7).
    Uring,
    /// preadv(2), pwritev(2), fdatasync(2), fallocate(2).
    Sync,
}

/// The engine and cache mode of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineChoice {
    /// The engine.
    pub engine: EngineKind,
    /// The alignment for `O_DIRECT`; `None`: through the page cache.
    pub direct: Option<Alignment>,
    /// The reason, where it is not the user's setting: `the image is in memory`.
    pub reason: Option<String>,
}

impl fmt::Display for EngineChoice {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self.engine {
            EngineKind::Uring => "io_uring",
            EngineKind::Sync => "system calls",
        })?;
        f.write_str(match self.direct {
            Some(_) => " with O_DIRECT",
            None => " through the page cache",
        })?;
        match &self.reason {
            Some(reason) => write!(f, " ({reason})"),
            None => Ok(()),
        }
    }
}

impl FromStr for EngineOption {
    type Err = String;

    fn from_str(text: &str) -> Result<EngineOption, String> {
        match text {
            "auto" => Ok(EngineOption::Auto),
            "uring" | "io_uring" => Ok(EngineOption::Uring),
            "sync" => Ok(EngineOption::Sync),
            _ => Err(format!(
                "unknown engine `{text}`; the engines are auto, uring and sync"
            )),
        }
    }
}

impl FromStr for CacheOption {
    type Err = String;

    fn from_str(text: &str) -> Result<CacheOption, String> {
        match text {
            "auto" => Ok(CacheOption::Auto),
            "direct" => Ok(CacheOption::Direct),
            "page" => Ok(CacheOption::PageCache),
            _ => Err(format!(
                "unknown cache mode `{text}`; the modes are auto, direct and page"
            )),
        }
    }
}

/// The inputs of the choice.
#[derive(Debug)]
pub(crate) struct EngineInputs {
    pub(crate) engine: EngineOption,
    pub(crate) cache: CacheOption,
    /// The requested block size in bytes.
    pub(crate) block_size: Option<u32>,
    /// The size of the disk, in bytes.
    pub(crate) size_bytes: u64,
    /// The image is in memory.
    pub(crate) in_memory: bool,
    /// The alignment for `O_DIRECT` where it works.
    pub(crate) direct: Option<Alignment>,
}

/// Chooses. `uring` tries whether io_uring works, and is only called if it matters.
///
/// For data in the page cache, a system call is faster than a request to a ring; for data on a
/// device, a ring keeps it busy. So `O_DIRECT` is used with io_uring.
///
/// # Errors
/// The user's settings cannot be applied; the text states the reason and the remedy.
pub(crate) fn choose(
    facts: &EngineInputs,
    uring: impl FnOnce() -> std::io::Result<()>,
) -> Result<EngineChoice, ChoiceError> {
    let obstacle = obstacle_to_direct(facts);
    let wants_direct = match (facts.cache, facts.engine) {
        (CacheOption::Direct, _) => match obstacle {
            Some(obstacle) => return Err(ChoiceError::Direct(obstacle)),
            None => true,
        },
        (CacheOption::PageCache, _) | (CacheOption::Auto, EngineOption::Sync) => false,
        (CacheOption::Auto, _) => obstacle.is_none() && !facts.in_memory,
    };
    let by_choice = facts.cache == CacheOption::Auto && facts.engine != EngineOption::Sync;
    let reason = match (wants_direct, by_choice) {
        (false, true) if facts.in_memory => Some("the image is in memory".to_owned()),
        (false, true) => obstacle,
        _ => None,
    };
    let direct = facts.direct.filter(|_| wants_direct);
    let chosen = |engine, direct, reason| EngineChoice {
        engine,
        direct,
        reason,
    };
    match facts.engine {
        EngineOption::Sync => Ok(chosen(EngineKind::Sync, direct, reason)),
        EngineOption::Auto if !wants_direct => Ok(chosen(EngineKind::Sync, None, reason)),
        EngineOption::Uring => match uring() {
            Ok(()) => Ok(chosen(EngineKind::Uring, direct, reason)),
            Err(error) => Err(ChoiceError::Uring(error)),
        },
        EngineOption::Auto => match uring() {
            Ok(()) => Ok(chosen(EngineKind::Uring, direct, reason)),
            Err(error) => {
                // One thread that waits for the device on each request benefits from the kernel's
                // cache and read-ahead.
                let direct = direct.filter(|_| facts.cache == CacheOption::Direct);
                let reason = format!("no io_uring: {error}");
                Ok(chosen(EngineKind::Sync, direct, Some(reason)))
            }
        },
    }
}

/// Why the user's settings cannot be applied.
#[derive(Debug)]
pub(crate) enum ChoiceError {
    Direct(String),
    Uring(std::io::Error),
}

impl ChoiceError {
    pub(crate) fn of(self, path: &std::path::Path) -> DiskError {
        match self {
            ChoiceError::Direct(reason) => DiskError::Unsuitable {
                path: path.to_owned(),
                reason: format!("does not support O_DIRECT: {reason}"),
                remedy: "choose cache `auto` or `page`".to_owned(),
            },
            ChoiceError::Uring(error) => DiskError::Engine {
                what: "io_uring",
                error,
                remedy: "choose engine `auto` or `sync`, or allow it (sysctl kernel.io_uring_disabled, seccomp)",
            },
        }
    }
}

fn obstacle_to_direct(facts: &EngineInputs) -> Option<String> {
    match (facts.direct, facts.block_size) {
        (None, _) => Some("its file system has no O_DIRECT".to_owned()),
        (Some(direct), Some(block)) if block < direct.offset => Some(format!(
            "blocks of {block} bytes are smaller than the {} that O_DIRECT requires",
            direct.offset
        )),
        (Some(direct), _) if !facts.size_bytes.is_multiple_of(direct.offset.into()) => {
            Some(format!(
                "its size of {} bytes is not a multiple of the {} that O_DIRECT requires",
                facts.size_bytes, direct.offset
            ))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: EngineInputs = EngineInputs {
        engine: EngineOption::Auto,
        cache: CacheOption::Auto,
        block_size: None,
        size_bytes: 1 << 20,
        in_memory: false,
        direct: Some(Alignment {
            offset: 4096,
            memory: 4,
        }),
    };

    fn chosen(facts: EngineInputs) -> String {
        choose(&facts, || Ok(())).unwrap().to_string()
    }

    #[test]
    fn a_file_on_a_device_is_served_by_io_uring_and_direct_io() {
        assert_eq!(chosen(FILE), "io_uring with O_DIRECT");
    }

    #[test]
    fn a_file_in_memory_is_served_by_system_calls() {
        let facts = EngineInputs {
            in_memory: true,
            ..FILE
        };
        let text = "system calls through the page cache (the image is in memory)";
        assert_eq!(chosen(facts), text);
    }

    #[test]
    fn blocks_that_are_too_small_for_o_direct_go_through_the_page_cache() {
        let facts = EngineInputs {
            block_size: Some(512),
            ..FILE
        };
        let text = "system calls through the page cache (blocks of 512 bytes are smaller than the \
                     4096 that O_DIRECT requires)";
        assert_eq!(chosen(facts), text);
    }

    #[test]
    fn the_user_s_settings_are_applied_or_rejected() {
        let facts_with = |engine, cache| EngineInputs {
            engine,
            cache,
            ..FILE
        };
        let sync = facts_with(EngineOption::Sync, CacheOption::Direct);
        assert_eq!(chosen(sync), "system calls with O_DIRECT");
        let cached = facts_with(EngineOption::Uring, CacheOption::PageCache);
        assert_eq!(chosen(cached), "io_uring through the page cache");
        let impossible = EngineInputs {
            direct: None,
            ..facts_with(EngineOption::Auto, CacheOption::Direct)
        };
        assert!(matches!(
            choose(&impossible, || Ok(())),
            Err(ChoiceError::Direct(_))
        ));
    }

    #[test]
    fn a_machine_without_io_uring_is_reported() {
        let forbidden = || Err(std::io::Error::from_raw_os_error(libc::EPERM));
        let choice = choose(&FILE, forbidden).unwrap().to_string();
        assert!(
            choice.starts_with("system calls through the page cache (no io_uring: "),
            "{choice}"
        );
        let asked = EngineInputs {
            engine: EngineOption::Uring,
            ..FILE
        };
        assert!(matches!(
            choose(&asked, forbidden),
            Err(ChoiceError::Uring(_))
        ));
    }
}
