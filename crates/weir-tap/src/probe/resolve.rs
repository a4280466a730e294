//! The columns of a probe: its fields, found on this host, and those that every probe has.

use std::io;
use std::path::Path;

use libbpf_rs::btf::Btf;
use weir_model::probe::{PAIR_KEYS_MAX, ProbeDefinition, ProbeField, ProbeType, TEXT_BYTES};
use weir_model::suggest::nearest;
use weir_model::{Catalog, Symbol, Unit};

use super::btf::{Leaf, Prototype};
use super::elf::{Program, UsdtArgument, UsdtSite, arguments_max, register_of};
use super::format::{self, FieldKind, FormatField};
use super::generate::{Content, Origin, PairKeys};
use super::hit_fields::{of_hit_itself, of_timer};
use super::pair::{of_every_pair, of_hit, same_call, unsigned};
use super::scope::{Scope, function};
use super::usdt::usdt;
use super::{Attachment, PAIR, PROGRAM, ProbeColumn, ProbeStream, ProbeTarget};
use crate::ebpf::stream::{FieldNumber, FieldValue};
use crate::elevation;

/// Arrays of more numbers are left out unless they are named.
const ELEMENTS_MAX: usize = 8;

/// Why a probe cannot be a stream on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeError {
    /// The cause.
    pub message: String,
    /// The remedy.
    pub help: Option<String>,
    /// The position of the field that it concerns.
    pub field: Option<usize>,
    /// It concerns the end of a pair.
    pub is_of_end: bool,
}

impl ProbeError {
    /// An error without a remedy.
    pub fn new(message: impl Into<String>) -> ProbeError {
        ProbeError {
            message: message.into(),
            help: None,
            field: None,
            is_of_end: false,
        }
    }

    /// With a remedy.
    pub(super) fn help(self, help: impl Into<String>) -> ProbeError {
        ProbeError {
            help: Some(help.into()),
            ..self
        }
    }

    /// With the nearest of the names that are possible.
    pub(super) fn near<'a>(
        self,
        name: &str,
        names: impl IntoIterator<Item = &'a str> + Clone,
    ) -> ProbeError {
        let mut listed: Vec<&str> = names.clone().into_iter().take(20).collect();
        match nearest(name, names) {
            Some(near) => self.help(format!("did you mean `{near}`?")),
            None if listed.is_empty() => self,
            None => {
                listed.sort_unstable();
                self.help(format!("there are {}", listed.join(", ")))
            }
        }
    }
}

/// A field that was found: its type as it is declared, its content, and where it is.
pub(super) struct Found {
    pub declared: String,
    pub content: Content,
    pub origin: Origin,
}

/// The function that finds a field.
pub(super) type Find<'a> = dyn Fn(&ProbeField) -> Result<Found, ProbeError> + 'a;

/// The fields of a probe on this host.
pub(super) struct Fields<'a> {
    /// The names of all fields that are read unless some are named.
    pub names: Vec<String>,
    /// The field of a path.
    pub find: Box<Find<'a>>,
}

impl ProbeStream {
    /// The stream of `definition` on this host.
    ///
    /// # Errors
    /// What this host lacks, or what is wrong in the definition.
    pub fn new(definition: &ProbeDefinition) -> Result<ProbeStream, ProbeError> {
        if Catalog::builtin().find(&definition.name).is_some() {
            return Err(ProbeError::new(format!(
                "`{}` is a stream or relation of weir",
                definition.name
            )));
        }
        let begin = parsed(&definition.probe)?;
        let _raised = elevation::raise(elevation::READING);
        let mut stream = ProbeStream {
            name: interned(&definition.name),
            doc: "",
            columns: of_every_probe(),
            attachments: Vec::new(),
            keys: PairKeys::default(),
            scope: Scope::new(&definition.scope)?,
            hits_max: definition.hits_max,
            cpu_percent_max: definition.cpu_percent_max,
        };
        let of_program = |program| Part {
            program,
            ..Part::default()
        };
        match &definition.end {
            None => {
                stream.doc = interned(&format!("one row per hit of the probe {begin}"));
                let whole = of_program(PROGRAM).fields(&definition.fields, definition);
                stream.add(begin, &whole)?;
            }
            Some(end) => {
                let at_end = |error: ProbeError| ProbeError {
                    is_of_end: true,
                    ..error
                };
                let target = parsed(&end.probe).map_err(at_end)?;
                stream.doc = interned(&format!("one row from {begin} to {target}"));
                stream.columns.extend(of_every_pair());
                let call = same_call(&begin, &target);
                if call.is_none() && end.keys.is_empty() {
                    let message = "what these two probes have in common is not stated";
                    let help = "ON follows the second probe: `ON tid` pairs the hits of a thread";
                    return Err(at_end(ProbeError::new(message).help(help)));
                }
                if end.keys.len() > PAIR_KEYS_MAX {
                    let message = format!("more than {PAIR_KEYS_MAX} numbers pair the probes");
                    return Err(at_end(ProbeError::new(message)));
                }
                let keys: [Vec<&str>; 2] = [
                    end.keys.iter().map(|(path, _)| &**path).collect(),
                    end.keys.iter().map(|(_, path)| &**path).collect(),
                ];
                let [begin_keys, end_keys] = keys;
                let first = of_program(PAIR[0]).fields(&definition.fields, definition);
                let second = of_program(PAIR[1]).fields(&end.fields, definition);
                stream.add(begin, &first.keys(begin_keys, 0))?;
                let second = Part {
                    is_call: call.is_some(),
                    ..second.keys(end_keys, 1)
                };
                stream.add(target, &second).map_err(at_end)?;
                if end.keys.is_empty() {
                    stream.keys = call.unwrap_or_default();
                }
            }
        }
        stream.columns.push(ProbeColumn {
            name: "host",
            doc: "this host",
            unit: Unit::None,
            content: Content::Head(FieldValue::Host),
            origin: Origin::Head,
        });
        Ok(stream)
    }

    /// Adds a probe with the columns of its fields.
    fn add(&mut self, target: ProbeTarget, part: &Part<'_>) -> Result<(), ProbeError> {
        let mut files = Vec::new();
        match &target {
            ProbeTarget::Tracepoint { category, name } => {
                let fields = tracepoint(category, name)?;
                self.add_fields(part, of_format(category, &fields))?;
            }
            ProbeTarget::TypedTracepoint(name) => {
                let btf = kernel_types()?;
                let prototype = Prototype::of_tracepoint(&btf, name);
                let prototype = prototype.ok_or_else(|| {
                    let missing = format!("this kernel has no tracepoint `{name}` with types");
                    ProbeError::new(missing).help(format!("`weir probes tp_btf:*{name}*` searches"))
                })?;
                self.add_fields(part, of_prototype(&prototype, false))?;
            }
            ProbeTarget::Function {
                function,
                is_return,
            } => {
                let btf = kernel_types()?;
                let prototype = Prototype::of_function(&btf, function);
                let prototype = prototype.ok_or_else(|| no_function(function))?;
                self.add_fields(part, of_prototype(&prototype, *is_return))?;
            }
            ProbeTarget::Kprobe {
                function,
                is_return,
            } => {
                if !Path::new("/sys/bus/event_source/devices/kprobe").exists() {
                    let message = "this kernel has no kprobes (CONFIG_KPROBE_EVENTS)";
                    return Err(ProbeError::new(message).help("use a tracepoint, tp: or tp_btf:"));
                }
                let btf = kernel_types()?;
                if Prototype::of_function(&btf, function).is_none() {
                    return Err(no_function(function));
                }
                self.add_fields(part, of_registers(*is_return, false))?;
            }
            ProbeTarget::Uprobe {
                file,
                symbol,
                is_return,
            } => {
                files = self
                    .scope
                    .files(file, |program| function(file, program, symbol))?;
                self.add_fields(part, of_registers(*is_return, true))?;
            }
            ProbeTarget::Usdt {
                file,
                provider,
                name,
            } => {
                let find = |program: &Program| usdt(file, program, provider, name);
                files = self.scope.files(file, find)?;
                let sites: Vec<UsdtSite> = files.iter().flat_map(|f| f.sites.clone()).collect();
                self.add_fields(part, of_usdt(&sites)?)?;
            }
            ProbeTarget::Timer(_) if part.program != PROGRAM => {
                let message = format!("{target} is a timer, which has no beginning and no end");
                return Err(ProbeError::new(message));
            }
            ProbeTarget::Timer(_) => self.add_fields(part, of_timer())?,
        }
        self.attachments.push(Attachment {
            program: part.program,
            target,
            files,
        });
        Ok(())
    }

    /// Adds the columns of the fields that the definition names, or of all, and the keys.
    fn add_fields(&mut self, part: &Part<'_>, fields: Fields<'_>) -> Result<(), ProbeError> {
        let all: Vec<ProbeField> = match part.is_all {
            true => fields
                .names
                .iter()
                .filter(|name| !part.is_call || *name == "retval")
                .map(|name| ProbeField::new(name))
                .collect(),
            false => part.fields.to_vec(),
        };
        let is_begin = part.program == PAIR[0];
        for (at, field) in all.iter().enumerate() {
            let at_field = |error: ProbeError| ProbeError {
                field: (!part.is_all).then_some(at),
                ..error
            };
            let found = (fields.find)(field).or_else(|error| of_hit_itself(field).ok_or(error));
            let found = found.map_err(at_field)?;
            let content = typed(field, found.content).map_err(at_field)?;
            if field.unit != Unit::None && !matches!(content, Content::Number { .. }) {
                let message = format!("`{}` is no number, so it has no unit", field.path);
                return Err(at_field(ProbeError::new(message)));
            }
            let mut name = field.column();
            // Roles and owners of a VM are decided by this column, which a probe does not know.
            let is_vm = field.ty == Some(ProbeType::Vm);
            let is_reserved = name.eq_ignore_ascii_case("vm") && !is_vm;
            if is_reserved && !part.is_all {
                let message = "column `vm` has the VM of a process, and no other field";
                let help = format!(
                    "give the field another name, `{0} AS ..`, or its type: `{0} vm AS vm`",
                    field.path
                );
                return Err(at_field(ProbeError::new(message).help(help)));
            }
            let known = |name: &str| {
                let mut columns = self.columns.iter();
                columns.any(|column| column.name.eq_ignore_ascii_case(name))
            };
            if is_reserved || known(&name) {
                if !part.is_all {
                    let message = format!("the stream has a column `{name}` already");
                    let help = format!("give the field another name: `{} AS ..`", field.path);
                    return Err(at_field(ProbeError::new(message).help(help)));
                }
                let before = if part.program == PAIR[1] {
                    "end"
                } else {
                    "field"
                };
                name = format!("{before}_{name}");
            }
            let of = found.declared;
            self.columns.push(ProbeColumn {
                name: interned(&name),
                doc: interned(&match of.is_empty() {
                    true => format!("`{}` of the probe", field.path),
                    false => format!("`{}` of the probe: {of}", field.path),
                }),
                unit: field.unit,
                content,
                origin: match is_begin {
                    true => Origin::Begin(Box::new(found.origin)),
                    false => found.origin,
                },
            });
        }
        for path in &part.keys {
            let found = (fields.find)(&ProbeField::new(path));
            let key = match found {
                Ok(found) => (found.content, found.origin),
                Err(error) => match of_hit(path) {
                    Some(key) => key,
                    None => return Err(error),
                },
            };
            if !matches!(key.0, Content::Number { .. }) {
                return Err(ProbeError::new(format!("`{path}` is no number")));
            }
            self.keys[part.number].push(key);
        }
        Ok(())
    }
}

/// One probe of a definition.
#[derive(Default)]
struct Part<'a> {
    /// The function of its program.
    program: &'static str,
    fields: &'a [ProbeField],
    /// The definition names no fields.
    is_all: bool,
    /// It is the return of the call that the other probe is the entry of.
    is_call: bool,
    /// The numbers by which it is paired.
    keys: Vec<&'a str>,
    /// The position in the pair.
    number: usize,
}

impl<'a> Part<'a> {
    fn fields(self, fields: &'a [ProbeField], definition: &ProbeDefinition) -> Part<'a> {
        let of_end = definition.end.iter().flat_map(|end| &end.fields);
        Part {
            fields,
            is_all: definition.fields.is_empty() && of_end.count() == 0,
            ..self
        }
    }

    fn keys(self, keys: Vec<&'a str>, number: usize) -> Part<'a> {
        Part {
            keys,
            number,
            ..self
        }
    }
}

/// The target of a definition.
fn parsed(probe: &str) -> Result<ProbeTarget, ProbeError> {
    let target = ProbeTarget::parse(probe);
    target.map_err(|why| ProbeError::new(format!("`{probe}` is not a probe")).help(why))
}

/// A text that is never freed: the names of streams and columns occur in symbols anyway.
fn interned(text: &str) -> &'static str {
    Symbol::new(text).as_str()
}

/// The columns that every probe has.
fn of_every_probe() -> Vec<ProbeColumn> {
    let column = |name, doc, content, origin| ProbeColumn {
        name,
        doc,
        unit: Unit::None,
        content,
        origin,
    };
    let head = |value| (Content::Head(value), Origin::Head);
    let (time, ts) = head(FieldValue::Time);
    let (processor, cpu) = head(FieldValue::Number(FieldNumber::CPU));
    vec![
        column("ts", "when the probe was hit", time, ts),
        column("cpu", "the processor", processor, cpu),
        column("pid", "the current process", unsigned(4), Origin::Pid),
        column("tid", "the current thread", unsigned(4), Origin::Tid),
        column(
            "comm",
            "the command name of the current thread",
            Content::Text(16),
            Origin::Comm,
        ),
        column(
            "cgroup",
            "the cgroup (v2) of the current process",
            Content::Cgroup,
            Origin::Cgroup,
        ),
    ]
}

/// The content of a field with the type of its definition.
fn typed(field: &ProbeField, declared: Content) -> Result<Content, ProbeError> {
    let of = |ty: &str| {
        let message = format!(
            "`{}` is {ty} and cannot be read as another type",
            field.path
        );
        Err(ProbeError::new(message))
    };
    match (field.ty, declared) {
        (None, declared) => Ok(declared),
        (Some(ProbeType::Vm), Content::Number { bytes, .. }) => Ok(Content::VmOfProcess(bytes)),
        (Some(ProbeType::Vm), Content::VmOfTask) => Ok(declared),
        (Some(ProbeType::Text { bytes }), Content::Text(_)) => Ok(Content::Text(bytes as usize)),
        (Some(ProbeType::Integer { bytes, is_signed }), Content::Number { bytes: own, .. }) => {
            match usize::from(bytes) <= own {
                true => Ok(Content::Number {
                    bytes: bytes.into(),
                    is_signed,
                }),
                false => of(&format!("a number of {own} bytes")),
            }
        }
        (Some(ProbeType::Vm), Content::Text(_)) => Ok(Content::VmOfNetDevice),
        (_, Content::Text(_)) => of("a text"),
        (_, Content::Stack(_)) => of("a stack"),
        (_, _) => of("a number"),
    }
}

/// The fields of a tracepoint.
fn tracepoint(category: &str, name: &str) -> Result<Vec<FormatField>, ProbeError> {
    format::read(category, name).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound if format::tracefs().is_none() => no_permission(&error),
        io::ErrorKind::PermissionDenied => no_permission(&error),
        io::ErrorKind::NotFound => {
            let all = format::tracepoints().unwrap_or_default();
            let own = all.iter().filter(|(other, _)| other == category);
            let own: Vec<&str> = own.map(|(_, name)| &**name).collect();
            match own.is_empty() {
                true => {
                    let mut categories: Vec<&str> = all.iter().map(|(c, _)| &**c).collect();
                    categories.dedup();
                    let message = format!("this kernel has no tracepoints of `{category}`");
                    ProbeError::new(message).near(category, categories)
                }
                false => {
                    let message = format!("this kernel has no tracepoint `{category}:{name}`");
                    ProbeError::new(message).near(name, own)
                }
            }
        }
        _ => ProbeError::new(format!("{category}:{name}: {error}")),
    })
}

/// Why the formats of tracepoints cannot be read.
pub(super) fn no_permission(error: &io::Error) -> ProbeError {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            let message = "only root can read the formats of tracepoints (/sys/kernel/tracing)";
            ProbeError::new(message).help("run as root, or use `tp_btf:`")
        }
        io::ErrorKind::NotFound => {
            let message = "the formats of tracepoints cannot be read: tracefs is not mounted";
            ProbeError::new(message).help("mount -t tracefs tracefs /sys/kernel/tracing")
        }
        _ => ProbeError::new(format!(
            "the formats of tracepoints cannot be read: {error}"
        )),
    }
}

/// The kernel's types.
pub(super) fn kernel_types() -> Result<Btf<'static>, ProbeError> {
    Btf::from_vmlinux().map_err(|error| {
        let message = format!("this kernel has no type information: {error}");
        ProbeError::new(message).help("run a kernel with CONFIG_DEBUG_INFO_BTF=y, or use `tp:`")
    })
}

fn no_function(function: &str) -> ProbeError {
    ProbeError::new(format!(
        "this kernel has no function `{function}` with types"
    ))
}

/// The fields of a tracepoint's format.
fn of_format<'a>(category: &str, fields: &'a [FormatField]) -> Fields<'a> {
    // The addresses that system calls receive are those of the process.
    let is_user = category == "syscalls";
    let names = fields.iter().flat_map(|field| match field.kind {
        FieldKind::Other => Vec::new(),
        FieldKind::Numbers(length) if length > ELEMENTS_MAX => Vec::new(),
        FieldKind::Numbers(length) => {
            let of = |at| format!("{}[{at}]", field.name);
            (0..length).map(of).collect()
        }
        _ => vec![field.name.clone()],
    });
    let find = move |wanted: &ProbeField| {
        let (name, index) = match wanted
            .path
            .strip_suffix(']')
            .and_then(|p| p.split_once('['))
        {
            Some((name, index)) => (name, index.parse::<usize>().ok()),
            None => (&*wanted.path, None),
        };
        let known = fields.iter().map(|field| &*field.name);
        let field = fields.iter().find(|field| field.name == name);
        let field = field.ok_or_else(|| {
            let message = format!("the tracepoint has no field `{name}`");
            ProbeError::new(message).near(name, known.collect::<Vec<_>>())
        })?;
        let at = field.offset as i16;
        let unreadable = || {
            let message = format!("field `{name}` is {}, which cannot be read", field.ty);
            ProbeError::new(message)
        };
        let number = |bytes| Content::Number {
            bytes,
            is_signed: field.is_signed,
        };
        let bounded = Content::Text(TEXT_BYTES as usize);
        let (content, origin) = match (field.kind, index) {
            (FieldKind::Number, None) => (number(field.bytes), Origin::Context(at)),
            (FieldKind::Numbers(length), Some(index)) if index < length => {
                let bytes = field.bytes / length;
                (number(bytes), Origin::Context(at + (index * bytes) as i16))
            }
            (FieldKind::Numbers(length), _) => {
                let message = format!("field `{name}` is an array of {length} numbers");
                return Err(ProbeError::new(message).help(format!("name one: `{name}[0]`")));
            }
            (FieldKind::Text, None) => (Content::Text(field.bytes), Origin::ContextText(at)),
            (FieldKind::LocatedText { is_relative }, None) => {
                (bounded, Origin::LocatedText { at, is_relative })
            }
            (FieldKind::TextAddress, None) => (bounded, Origin::TextAddress { at, is_user }),
            _ => return Err(unreadable()),
        };
        Ok(Found {
            declared: field.ty.clone(),
            content,
            origin,
        })
    };
    Fields {
        names: names.collect(),
        find: Box::new(find),
    }
}

/// The arguments of a tracepoint or a function, and what they refer to.
fn of_prototype<'a>(prototype: &'a Prototype<'a>, is_return: bool) -> Fields<'a> {
    let arguments = prototype.arguments();
    let mut names: Vec<String> = arguments.iter().map(|a| a.name.clone()).collect();
    if is_return && prototype.has_result() {
        names.push("retval".into());
    }
    names.retain(|name| prototype.place(name).is_ok());
    let find = move |field: &ProbeField| {
        let wrong = |(why, names): (String, Vec<String>)| {
            let name = field.path.rsplit('.').next().unwrap_or_default();
            let names: Vec<&str> = names.iter().map(|name| &**name).collect();
            ProbeError::new(format!("`{}`: {why}", field.path)).near(name, names)
        };
        let place = prototype.place(&field.path).map_err(wrong)?;
        let content = match place.leaf {
            Leaf::Itself { bytes, is_signed }
            | Leaf::Number {
                bytes, is_signed, ..
            }
            | Leaf::Bits {
                bytes, is_signed, ..
            } => Content::Number { bytes, is_signed },
            Leaf::Text { bytes, .. } => Content::Text(bytes),
            Leaf::TextAddress { .. } => Content::Text(TEXT_BYTES as usize),
        };
        let argument = arguments
            .get(place.argument)
            .filter(|a| a.name == field.path);
        Ok(Found {
            declared: argument.map_or_else(String::new, |argument| argument.ty.clone()),
            content,
            origin: Origin::Place(place),
        })
    };
    Fields {
        names,
        find: Box::new(find),
    }
}

/// The arguments of a function that are in registers, or its result.
fn of_registers<'a>(is_return: bool, is_user: bool) -> Fields<'a> {
    let names: Vec<String> = match is_return {
        true => vec!["retval".into()],
        false => (0..arguments_max()).map(|at| format!("arg{at}")).collect(),
    };
    let known = names.clone();
    let find = move |field: &ProbeField| {
        let at = register_of(&field.path).filter(|_| known.contains(&field.path));
        let at = at.ok_or_else(|| {
            let message = format!("there is no `{}` here", field.path);
            ProbeError::new(message).near(&field.path, known.iter().map(|name| &**name))
        })?;
        let (content, origin) = match field.ty {
            Some(ProbeType::Text { bytes }) => {
                let text = Content::Text(bytes as usize);
                (text, Origin::TextAddress { at, is_user })
            }
            _ => (
                Content::Number {
                    bytes: 8,
                    is_signed: true,
                },
                Origin::Context(at),
            ),
        };
        Ok(Found {
            declared: String::new(),
            content,
            origin,
        })
    };
    Fields {
        // Functions do not declare how many arguments they have.
        names: if is_return { names } else { Vec::new() },
        find: Box::new(find),
    }
}

/// The arguments of a USDT probe.
fn of_usdt<'a>(sites: &[UsdtSite]) -> Result<Fields<'a>, ProbeError> {
    let unknown = |argument: String| {
        ProbeError::new(format!(
            "the location `{argument}` of an argument cannot be read"
        ))
    };
    let all: Result<Vec<_>, String> = sites.iter().map(UsdtSite::operands).collect();
    let all: Vec<Vec<UsdtArgument>> = all.map_err(unknown)?;
    let count = all.iter().map(Vec::len).min().unwrap_or(0);
    let names: Vec<String> = (0..count).map(|at| format!("arg{at}")).collect();
    let known = names.clone();
    let find = move |field: &ProbeField| {
        let at = known.iter().position(|name| *name == field.path);
        let at = at.ok_or_else(|| {
            let message = format!("the probe has no argument `{}`", field.path);
            ProbeError::new(message).near(&field.path, known.iter().map(|name| &**name))
        })?;
        let sites: Vec<UsdtArgument> = all.iter().map(|arguments| arguments[at]).collect();
        let content = match field.ty {
            Some(ProbeType::Text { bytes }) => Content::Text(bytes as usize),
            _ => Content::Number {
                bytes: sites.iter().map(|site| site.bytes).max().unwrap_or(8),
                is_signed: sites.iter().any(|site| site.is_signed),
            },
        };
        Ok(Found {
            declared: String::new(),
            content,
            origin: Origin::Usdt(sites),
        })
    };
    Ok(Fields {
        names,
        find: Box::new(find),
    })
}
