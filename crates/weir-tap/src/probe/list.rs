//! The probes that this host and the programs on it offer, with their fields.

use std::path::Path;

use libbpf_rs::btf::types::{Func, Typedef};
use weir_model::text::matches_pattern;

use super::btf::Prototype;
use super::elf::Program;
use super::format::{self, FieldKind};
use super::resolve::{kernel_types, no_permission};
use super::{KINDS, ProbeError};
use crate::elevation;

/// A probe that a query can define a stream of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedProbe {
    /// Its text: `tp:sched:sched_switch`.
    pub probe: String,
    /// Its fields.
    pub fields: Vec<ListedField>,
}

/// A field of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedField {
    /// Its name, or where it is for a USDT probe.
    pub name: String,
    /// Its type as the kernel declares it.
    pub ty: String,
    /// Whether a column can be read from it.
    pub is_readable: bool,
}

/// Maximum number of probes in a list.
pub const LISTED_MAX: usize = 100_000;

/// The prefix of the functions that call the probes of a tracepoint.
const TRACEPOINT_TYPE: &str = "btf_trace_";

/// The probes that match `pattern`, in which `*` stands for any text. Without a kind, those of the
/// kernel's tracepoints whose names contain it; without `*` and fields, names that contain it.
///
/// # Errors
/// If the pattern is of an unknown kind, or its probes cannot be read.
pub fn list(pattern: &str) -> Result<Vec<ListedProbe>, ProbeError> {
    let _raised = elevation::raise(elevation::READING);
    let Some((kind, rest)) = pattern.split_once(':') else {
        let anywhere = format!("*{pattern}*");
        // With the names of their kinds, so that these can be completed.
        let mut all = typed_tracepoints("*")?;
        // Without rights, the other half of the list still has its use.
        all.extend(tracepoints("*").unwrap_or_default());
        all.retain(|listed| matches_pattern(&anywhere, &listed.probe));
        return Ok(all);
    };
    match kind {
        "tp" => tracepoints(rest),
        "tp_btf" => typed_tracepoints(rest),
        "kprobe" | "kretprobe" | "fentry" | "fexit" => functions(kind, rest),
        "uprobe" | "uretprobe" | "usdt" => of_file(kind, rest),
        "perf" => Ok(vec![timer(rest)]),
        _ => {
            let names: Vec<&str> = KINDS.iter().map(|kind| kind.name).collect();
            let message = format!("`{kind}` is not a kind of probe");
            Err(ProbeError::new(message).help(format!("the kinds are {}", names.join(", "))))
        }
    }
}

fn tracepoints(pattern: &str) -> Result<Vec<ListedProbe>, ProbeError> {
    let all = format::tracepoints().map_err(|error| no_permission(&error))?;
    let names = all
        .into_iter()
        .filter(|(category, name)| matches_pattern(pattern, &format!("{category}:{name}")));
    let listed = names.map(|(category, name)| {
        let fields = format::read(&category, &name).unwrap_or_default();
        let fields = fields.into_iter().map(|field| ListedField {
            is_readable: field.kind != FieldKind::Other,
            ty: match field.kind {
                FieldKind::Text => format!("{}[{}]", field.ty, field.bytes),
                FieldKind::Numbers(length) => format!("{}[{length}]", field.ty),
                _ => field.ty,
            },
            name: field.name,
        });
        ListedProbe {
            probe: format!("tp:{category}:{name}"),
            fields: fields.collect(),
        }
    });
    Ok(listed.collect())
}

fn typed_tracepoints(pattern: &str) -> Result<Vec<ListedProbe>, ProbeError> {
    let btf = kernel_types()?;
    let names = btf.type_by_kind::<Typedef<'_>>();
    let names = names.filter_map(|ty| ty.name()?.to_str()?.strip_prefix(TRACEPOINT_TYPE));
    let mut names: Vec<&str> = names
        .filter(|name| matches_pattern(pattern, name))
        .collect();
    names.sort_unstable();
    names.dedup();
    let listed = names.into_iter().filter_map(|name| {
        let prototype = Prototype::of_tracepoint(&btf, name)?;
        Some(of_prototype(format!("tp_btf:{name}"), &prototype))
    });
    Ok(listed.collect())
}

fn functions(kind: &str, pattern: &str) -> Result<Vec<ListedProbe>, ProbeError> {
    let btf = kernel_types()?;
    let names = btf.type_by_kind::<Func<'_>>();
    let names = names.filter_map(|ty| ty.name()?.to_str());
    let mut names: Vec<&str> = names
        .filter(|name| matches_pattern(pattern, name))
        .collect();
    names.sort_unstable();
    names.dedup();
    names.truncate(LISTED_MAX);
    let listed = names.into_iter().filter_map(|name| {
        let prototype = Prototype::of_function(&btf, name)?;
        Some(of_prototype(format!("{kind}:{name}"), &prototype))
    });
    Ok(listed.collect())
}

fn of_prototype(probe: String, prototype: &Prototype<'_>) -> ListedProbe {
    let field = |argument: super::btf::Argument| ListedField {
        is_readable: true,
        name: argument.name,
        ty: argument.ty,
    };
    ListedProbe {
        probe,
        fields: prototype.arguments().into_iter().map(field).collect(),
    }
}

/// `perf:HZ`; for a pattern, the frequency that profilers use.
fn timer(hz: &str) -> ListedProbe {
    let stacks = ["stack", "ustack", "kstack"];
    ListedProbe {
        probe: match hz.parse::<u32>() {
            Ok(hz) => format!("perf:{hz}"),
            Err(_) => "perf:99".into(),
        },
        fields: stacks
            .map(|name| ListedField {
                name: name.into(),
                ty: "stack".into(),
                is_readable: true,
            })
            .into(),
    }
}

/// `uprobe:FILE:SYMBOL`, `usdt:FILE:PROVIDER:NAME`; without the rest, everything in the file.
fn of_file(kind: &str, rest: &str) -> Result<Vec<ListedProbe>, ProbeError> {
    let (file, pattern) = match Path::new(rest).is_file() {
        true => (rest, "*"),
        false => {
            // The names of a USDT probe have a colon; file names may have some too.
            let mut ends = rest.match_indices(':').map(|(at, _)| at);
            let end = ends.find(|end| Path::new(&rest[..*end]).is_file());
            let end = end.ok_or_else(|| {
                ProbeError::new(format!("{rest}: there is no such file"))
                    .help(format!("write it as {kind}:FILE:PATTERN"))
            })?;
            (&rest[..end], &rest[end + 1..])
        }
    };
    let read = Program::read(Path::new(file));
    let program = read.map_err(|error| ProbeError::new(format!("{file}: {error}")))?;
    let mut listed = Vec::new();
    if kind == "usdt" {
        for site in &program.sites {
            let name = format!("{}:{}", site.provider, site.name);
            let probe = format!("usdt:{file}:{name}");
            let is_new = listed
                .iter()
                .all(|other: &ListedProbe| other.probe != probe);
            if !matches_pattern(pattern, &name) || !is_new {
                continue;
            }
            let arguments = site.operands().unwrap_or_default();
            let field = |(at, argument): (usize, &super::elf::UsdtArgument)| ListedField {
                name: format!("arg{at}"),
                ty: format!(
                    "{}{}",
                    if argument.is_signed { 's' } else { 'u' },
                    argument.bytes * 8
                ),
                is_readable: true,
            };
            let fields = arguments.iter().enumerate().map(field).collect();
            listed.push(ListedProbe { probe, fields });
        }
        return Ok(listed);
    }
    let functions = program.functions.iter();
    let functions = functions.filter(|function| matches_pattern(pattern, &function.name));
    let mut listed: Vec<ListedProbe> = functions
        .map(|function| ListedProbe {
            probe: format!("{kind}:{file}:{}", function.name),
            fields: Vec::new(),
        })
        .collect();
    listed.dedup();
    Ok(listed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_tracepoints_are_listed_with_their_arguments() {
        let Ok(found) = list("tp_btf:block_rq_complete") else {
            eprintln!("skipped: this kernel has no type information");
            return;
        };
        let [probe] = &found[..] else {
            panic!("{found:?}");
        };
        let fields: Vec<(&str, &str)> = probe.fields.iter().map(|f| (&*f.name, &*f.ty)).collect();
        assert_eq!(probe.probe, "tp_btf:block_rq_complete");
        assert_eq!(fields[0], ("rq", "struct request *"));
    }
}
