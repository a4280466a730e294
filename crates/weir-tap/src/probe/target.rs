//! [`ProbeTarget`]: what a probe is attached to, from its text.

use std::fmt;

/// What a probe is attached to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeTarget {
    /// `tp:CATEGORY:NAME`: a tracepoint, with the fields of its format.
    Tracepoint {
        /// Its category.
        category: String,
        /// Its name.
        name: String,
    },
    /// `tp_btf:NAME`: a tracepoint, with its typed arguments.
    TypedTracepoint(String),
    /// `kprobe:FUNCTION`, `kretprobe:FUNCTION`: the entry or the return of a function of the
    /// kernel.
    Kprobe {
        /// The function.
        function: String,
        /// Its return.
        is_return: bool,
    },
    /// `fentry:FUNCTION`, `fexit:FUNCTION`: the same, with typed arguments.
    Function {
        /// The function.
        function: String,
        /// Its return.
        is_return: bool,
    },
    /// `uprobe:FILE:SYMBOL`, `uretprobe:FILE:SYMBOL`: the entry or the return of a function of
    /// programs.
    Uprobe {
        /// The program or library.
        file: String,
        /// The function.
        symbol: String,
        /// Its return.
        is_return: bool,
    },
    /// `usdt:FILE:PROVIDER:NAME`: a probe that a program or a library declares.
    Usdt {
        /// The program or library.
        file: String,
        /// The provider.
        provider: String,
        /// Its name.
        name: String,
    },
    /// `perf:HZ`: a timer of each processor, this many times a second.
    Timer(u32),
}

/// Maximum frequency of a timer. The kernel's own maximum is `kernel.perf_event_max_sample_rate`.
const HZ_MAX: u32 = 100_000;

/// A kind of probe.
#[derive(Debug)]
pub struct ProbeKind {
    /// The beginning of its text.
    pub name: &'static str,
    /// The rest.
    pub argument: &'static str,
    /// Its meaning.
    pub doc: &'static str,
}

/// Every kind of probe.
pub static KINDS: &[ProbeKind] = &[
    ProbeKind {
        name: "tp",
        argument: "CATEGORY:NAME",
        doc: "a tracepoint, with the fields of its format",
    },
    ProbeKind {
        name: "tp_btf",
        argument: "NAME",
        doc: "a tracepoint, with its arguments and what they refer to",
    },
    ProbeKind {
        name: "kprobe",
        argument: "FUNCTION",
        doc: "the entry of a function of the kernel",
    },
    ProbeKind {
        name: "kretprobe",
        argument: "FUNCTION",
        doc: "the return of a function of the kernel",
    },
    ProbeKind {
        name: "fentry",
        argument: "FUNCTION",
        doc: "the entry of a function of the kernel, with its arguments and what they refer to",
    },
    ProbeKind {
        name: "fexit",
        argument: "FUNCTION",
        doc: "the return of a function of the kernel, with its arguments and its result",
    },
    ProbeKind {
        name: "uprobe",
        argument: "FILE:SYMBOL",
        doc: "the entry of a function of a program or a library",
    },
    ProbeKind {
        name: "uretprobe",
        argument: "FILE:SYMBOL",
        doc: "the return of a function of a program or a library",
    },
    ProbeKind {
        name: "usdt",
        argument: "FILE:PROVIDER:NAME",
        doc: "a probe that a program or a library declares",
    },
    ProbeKind {
        name: "perf",
        argument: "HZ",
        doc: "a sample of each processor, so many times a second, with its stacks",
    },
];

impl ProbeTarget {
    /// The target that `text` names.
    ///
    /// # Errors
    /// The correct form.
    pub fn parse(text: &str) -> Result<ProbeTarget, String> {
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        let Some(known) = KINDS.iter().find(|known| known.name == kind) else {
            let names: Vec<&str> = KINDS.iter().map(|kind| kind.name).collect();
            return Err(format!("a probe begins with one of {}", names.join(", ")));
        };
        let two = || {
            let (first, second) = rest.rsplit_once(':')?;
            (!first.is_empty() && !second.is_empty()).then(|| (first.to_owned(), second.to_owned()))
        };
        let one = || (!rest.is_empty() && !rest.contains(':')).then(|| rest.to_owned());
        let is_return = kind.contains("ret") || kind == "fexit";
        let target = match kind {
            "tp" => two().map(|(category, name)| ProbeTarget::Tracepoint { category, name }),
            "tp_btf" => one().map(ProbeTarget::TypedTracepoint),
            "kprobe" | "kretprobe" => one().map(|function| ProbeTarget::Kprobe {
                function,
                is_return,
            }),
            "fentry" | "fexit" => one().map(|function| ProbeTarget::Function {
                function,
                is_return,
            }),
            "uprobe" | "uretprobe" => two().map(|(file, symbol)| ProbeTarget::Uprobe {
                file,
                symbol,
                is_return,
            }),
            "perf" => {
                let hz = one().and_then(|hz| hz.parse().ok());
                let hz = hz.filter(|hz| (1..=HZ_MAX).contains(hz));
                let hint = || format!("write it as perf:HZ, with 1 to {HZ_MAX} samples a second");
                return hz.map(ProbeTarget::Timer).ok_or_else(hint);
            }
            _ => two().and_then(|(first, name)| {
                let (file, provider) = first.rsplit_once(':')?;
                Some(ProbeTarget::Usdt {
                    file: file.into(),
                    provider: provider.into(),
                    name,
                })
            }),
        };
        target.ok_or_else(|| format!("write it as {}:{}", known.name, known.argument))
    }

    /// The entry of the function whose return it is.
    pub(super) fn of_entry(&self) -> Option<ProbeTarget> {
        let mut entry = self.clone();
        match &mut entry {
            ProbeTarget::Kprobe { is_return, .. }
            | ProbeTarget::Function { is_return, .. }
            | ProbeTarget::Uprobe { is_return, .. } => {
                std::mem::replace(is_return, false).then_some(entry)
            }
            _ => None,
        }
    }
}

impl fmt::Display for ProbeTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ret = |is_return: bool| if is_return { "ret" } else { "" };
        match self {
            ProbeTarget::Tracepoint { category, name } => write!(f, "tp:{category}:{name}"),
            ProbeTarget::TypedTracepoint(name) => write!(f, "tp_btf:{name}"),
            ProbeTarget::Kprobe {
                function,
                is_return,
            } => write!(f, "k{}probe:{function}", ret(*is_return)),
            ProbeTarget::Function {
                function,
                is_return,
            } => write!(
                f,
                "{}:{function}",
                if *is_return { "fexit" } else { "fentry" }
            ),
            ProbeTarget::Uprobe {
                file,
                symbol,
                is_return,
            } => write!(f, "u{}probe:{file}:{symbol}", ret(*is_return)),
            ProbeTarget::Usdt {
                file,
                provider,
                name,
            } => write!(f, "usdt:{file}:{provider}:{name}"),
            ProbeTarget::Timer(hz) => write!(f, "perf:{hz}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_printed_as_they_are_read() {
        for text in [
            "tp:sched:sched_switch",
            "tp_btf:block_rq_issue",
            "kprobe:vfs_read",
            "kretprobe:vfs_read",
            "fentry:vfs_read",
            "fexit:vfs_read",
            "uprobe:/lib/a:b.so:malloc",
            "uretprobe:/bin/x:main",
            "usdt:/bin/x:provider:name",
            "perf:99",
        ] {
            assert_eq!(
                ProbeTarget::parse(text).map(|t| t.to_string()),
                Ok(text.into())
            );
        }
    }

    #[test]
    fn the_form_of_a_kind_is_explained() {
        for (text, why) in [
            ("tp:sched_switch", "tp:CATEGORY:NAME"),
            ("tp_btf:", "tp_btf:NAME"),
            ("usdt:/bin/x:name", "usdt:FILE:PROVIDER:NAME"),
            ("uprobe:/bin/x:", "uprobe:FILE:SYMBOL"),
            ("tracepoint:a:b", "one of tp, tp_btf"),
            ("perf:0", "perf:HZ, with 1 to 100000"),
            ("perf:cycles", "perf:HZ"),
        ] {
            let error = ProbeTarget::parse(text).expect_err(text);
            assert!(error.contains(why), "{error}");
        }
    }
}
