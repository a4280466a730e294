//! The sources of a script's streams: STREAM source files, traces, the live tap.
//!
//! A file is a STREAM source file if its first line is a type line. Otherwise it is a trace, and
//! the script declares columns of `IOstream`. Nothing else in the file is considered.
//!
//! A stream that a script declares over a trace gets the columns of `IOstream` by their names,
//! those of the thesis or the plain ones. Where its source pairs requests with responses, joins of
//! the two are computed from a second stream, of pairs with the same columns ([`pairings`]).

use std::path::Path;

use weir_model::event::{IO_PAIRS, io_schema, iostream_schema};
use weir_model::suggest;
use weir_model::{
    Alias, Declaration, Demand, Field, NANOS_PER_MICRO, Predicate, Schema, Shape, Type,
};
use weir_query::diagnostic::{Diagnostic, codes};
use weir_query::place::pairing::PairingGuarantee;
use weir_query::script::ScriptTable;
use weir_query::{Expr, Script};
use weir_tap::TapError;
use weir_tap::format::source::{STANDARD_INPUT, is_standard_input};
use weir_tap::format::stream_tap::StreamTap;

use crate::failure::Failure;
use crate::question::Question;
use crate::run_loop::{Adopted, Adoption, Input, Outlet, Stop};
use crate::source::{self, Source, SourceOptions};
use crate::traces::Beginning;

/// The live source as scripts write it.
pub const LIVE_TAP: &str = "tap:live";

/// Rows of a trace or of the live tap that one source of the engine needs.
struct Wanted {
    source: Source,
    demand: Demand,
    outlet: Outlet,
}

/// Opens the sources that a script's queries need.
///
/// # Errors
/// When a file cannot be read, the host cannot be observed, or a declaration does not match its
/// source.
pub fn open(
    script: &Script,
    question: &Question,
    demands: &[Demand],
    args: &SourceOptions,
    stop: &Stop,
) -> Result<Vec<Input>, Failure> {
    args.traces.end_with(stop);
    if demands.is_empty() {
        return source::counted(args);
    }
    let (mut inputs, mut wanted, mut off) = (Vec::new(), Vec::new(), Vec::new());
    for demand in demands {
        let is_it = |t: &&ScriptTable| t.declaration.name.eq_ignore_ascii_case(&demand.stream);
        let of_pairs = |t: &&ScriptTable| pairs_name(t).eq_ignore_ascii_case(&demand.stream);
        if let Some(table) = script.tables.iter().find(of_pairs) {
            match adopted_pairs(table, demand) {
                Ok((demand, adoption)) => wanted.push(Wanted {
                    source: named(&table.source),
                    outlet: outlet(&pairs_name(table), Some(adoption)),
                    demand,
                }),
                Err(diagnostic) => off.push(diagnostic),
            }
            continue;
        }
        let Some(table) = script.tables.iter().find(is_it) else {
            wanted.extend(predefined(script, demand, args));
            continue;
        };
        let source = named(&table.source);
        match &source {
            Source::File(path) if holds_ticks(path, args)? => {
                inputs.push(ticks(path, &table.declaration, args)?);
            }
            _ => match adopted(table, demand) {
                Ok((demand, adoption)) => wanted.push(Wanted {
                    source,
                    outlet: outlet(&table.declaration.name, Some(adoption)),
                    demand,
                }),
                Err(diagnostic) => off.push(read_as_trace(diagnostic, &table.source)),
            },
        }
    }
    if !off.is_empty() {
        return Err(question.failure(&off));
    }
    inputs.extend(events(wanted, args, stop)?);
    Ok(inputs)
}

/// The properties of requests and responses that the sources of a script's events guarantee.
pub fn pairings(script: &Script, args: &SourceOptions) -> Vec<PairingGuarantee> {
    let of_ticks = || "the rows of a STREAM source file are not requests";
    let of_tables = script.tables.iter().filter_map(|table| {
        let columns = columns(table).ok()?;
        let guarantee = match named(&table.source) {
            Source::File(path) if holds_ticks(&path, args).unwrap_or(false) => {
                Err(of_ticks().into())
            }
            source => source.capabilities(args).pairs(&IO_PAIRS),
        };
        pairing(table, &columns, guarantee)
    });
    let mut pairings: Vec<PairingGuarantee> = of_tables.collect();
    let declared = |name: &str| {
        let mut tables = script.tables.iter();
        tables.any(|t| t.declaration.name.eq_ignore_ascii_case(name))
    };
    if !declared("IOstream") && !declared("IO") {
        let guarantee = match &script.iostream_source {
            Some(text) => named(text).capabilities(args),
            None => args.capabilities(),
        };
        let guarantee = guarantee.pairs(&IO_PAIRS);
        pairings.push(PairingGuarantee::new(&IO_PAIRS, NANOS_PER_MICRO, guarantee));
    }
    pairings
}

/// The engine's name for the pairs of a table's events. Names in scripts cannot contain this
/// character.
fn pairs_name(table: &ScriptTable) -> String {
    format!("{}#pairs", table.declaration.name)
}

/// The guaranteed properties of a table over events, if it distinguishes requests from responses
/// and has their numbers. A row of the pairs has the table's columns for the response; then, for
/// each of them that is the time of the event, that of the request; and last the request's instant.
fn pairing(
    table: &ScriptTable,
    columns: &[Adopted],
    guarantee: Result<(), String>,
) -> Option<PairingGuarantee> {
    let io = PairingGuarantee::new(&IO_PAIRS, NANOS_PER_MICRO, guarantee.clone());
    let schema = iostream_schema();
    let at = |name: &str| columns.iter().position(|c| c.index == schema.index(name));
    let own = &table.declaration.schema.fields;
    let mut fields = own.clone();
    let column = |at: usize, field: &Field| Expr::column(at, field.ty, field.unit);
    let mut request = Vec::new();
    let mut response = Vec::new();
    for (i, (adopted, field)) in columns.iter().zip(own).enumerate() {
        response.push(Some(column(i, field)));
        request.push(match &io.request[adopted.index] {
            Some(_) if adopted.index == schema.index("ts") => {
                let of_request = Some(column(fields.len(), field));
                fields.push(Field {
                    name: format!("{} of the request", field.name),
                    ..field.clone().nullable()
                });
                of_request
            }
            Some(letter) if adopted.index == io.kind => Some(letter.clone()),
            Some(_) => Some(column(i, field)),
            None => None,
        });
    }
    let instant = Field::new("instant of the request", Type::Int).nullable();
    let origin = column(fields.len(), &instant);
    fields.push(instant);
    Some(PairingGuarantee {
        events: table.declaration.name.clone(),
        kind: at("type")?,
        number: at("req_id")?,
        origin,
        pairs: Declaration {
            doc: "the table's responses, each with the time of its request".into(),
            ..Declaration::new(pairs_name(table), Shape::Stream, Schema::new(fields))
        },
        request,
        response,
        guarantee,
    })
}

/// The demand for a table's pairs, and the mapping of their columns to those of `IO`, which begins
/// with those of `IOstream`.
fn adopted_pairs(table: &ScriptTable, demand: &Demand) -> Result<(Demand, Adoption), Diagnostic> {
    let schema = io_schema();
    let mut columns = columns(table)?;
    let times = columns.iter().filter(|c| c.index == schema.index("ts"));
    let divisors = times.map(|time| time.divisor).chain([NANOS_PER_MICRO]);
    let of_request: Vec<Adopted> = divisors
        .map(|divisor| Adopted {
            index: schema.index("issue_ts"),
            divisor,
        })
        .collect();
    columns.extend(of_request);
    Ok(demanded("IO", columns, demand))
}

/// The source that a script names.
fn named(text: &str) -> Source {
    match text {
        LIVE_TAP => Source::Live,
        path if is_standard_input(Path::new(path)) => Source::File(STANDARD_INPUT.into()),
        path => Source::File(path.into()),
    }
}

/// `IOstream` and `IO` are predefined.
fn predefined(script: &Script, demand: &Demand, args: &SourceOptions) -> Vec<Wanted> {
    let sources = match &script.iostream_source {
        Some(text) => vec![named(text)],
        None => args.sources(),
    };
    let wanted = |source| Wanted {
        source,
        demand: demand.clone(),
        outlet: outlet(&demand.stream, None),
    };
    sources.into_iter().map(wanted).collect()
}

/// In a trace, the thesis's ticks are microseconds.
fn outlet(source: &str, adoption: Option<Adoption>) -> Outlet {
    Outlet {
        demand: 0,
        source: source.into(),
        instant_ns: NANOS_PER_MICRO,
        adoption,
    }
}

/// Whether a file is a STREAM source file and not a trace: its type line decides. For an empty
/// file, the reader of source files reports that this line is missing.
fn holds_ticks(path: &Path, args: &SourceOptions) -> Result<bool, TapError> {
    Ok(match args.traces.beginning(path)? {
        Beginning::TypeLine => true,
        Beginning::Nothing => args.from_format.is_none(),
        Beginning::Other => false,
    })
}

/// The diagnostic, with the reason why the table's source is read as a trace.
fn read_as_trace(diagnostic: Diagnostic, source: &str) -> Diagnostic {
    if source == LIVE_TAP {
        return diagnostic;
    }
    let why = format!("{source} is read as a trace because it has no type line, such as `i,i,f`");
    match &diagnostic.help {
        Some(help) => {
            let help = format!("{help}; {why}");
            diagnostic.help(help)
        }
        None => diagnostic.help(why),
    }
}

fn ticks(path: &Path, declared: &Declaration, args: &SourceOptions) -> Result<Input, TapError> {
    let input = args.traces.input(path)?;
    Ok(Input {
        tap: Box::new(StreamTap::open(input, declared, args.strict)?),
        live: false,
        span_ns: args.span_ns().map(|ns| (ns / NANOS_PER_MICRO).max(1)),
        outlets: vec![Outlet {
            instant_ns: 1,
            ..outlet(&declared.name, None)
        }],
    })
}

/// The demand for the columns that a table declares over `IOstream`, and their mapping.
fn adopted(table: &ScriptTable, demand: &Demand) -> Result<(Demand, Adoption), Diagnostic> {
    Ok(demanded("IOstream", events_columns(table)?, demand))
}

/// The columns of `IOstream` that a table declares, which must be a stream.
///
/// # Errors
/// When it is not a stream, or a column is not available.
pub fn events_columns(table: &ScriptTable) -> Result<Vec<Adopted>, Diagnostic> {
    if table.declaration.shape == Shape::Relation {
        let message = format!(
            "`{}` is a relation, but a trace is a stream",
            table.declaration.name
        );
        let found = codes::SCRIPT_SHAPE.at(table.span, message);
        return Err(found.help("write `register stream`, or use a STREAM source file"));
    }
    columns(table)
}

/// The columns of `IOstream` that a table declares.
fn columns(table: &ScriptTable) -> Result<Vec<Adopted>, Diagnostic> {
    let fields = table.declaration.schema.fields.iter();
    fields.map(|field| column(field, table)).collect()
}

/// The demand for `columns`, as far as `demand` includes them.
fn demanded(stream: &str, columns: Vec<Adopted>, demand: &Demand) -> (Demand, Adoption) {
    let used = demand.columns.iter().map(|i| columns[*i].index);
    let mut used: Vec<usize> = used.collect();
    used.sort_unstable();
    used.dedup();
    let demand = Demand {
        stream: stream.into(),
        columns: used,
        predicate: Predicate::all(),
        fold: None,
    };
    (demand, Adoption(columns))
}

fn column(field: &Field, table: &ScriptTable) -> Result<Adopted, Diagnostic> {
    let schema = iostream_schema();
    let Some((index, alias)) = schema.find(&field.name) else {
        let message = format!("`{}` is not a column of IOstream", field.name);
        let found = codes::UNKNOWN_COLUMN.at(table.span, message);
        let names = schema.fields.iter().flat_map(|f| {
            let aliases = f.aliases.iter().map(|a: &Alias| a.name);
            std::iter::once(f.name.as_str()).chain(aliases)
        });
        return Err(match suggest::nearest(&field.name, names) {
            Some(near) => found.help(format!("did you mean `{near}`?")),
            None => found.help("`weir streams IOstream` lists them"),
        });
    };
    let given = &schema[index];
    let fits = field.ty == given.ty || (field.ty, given.ty) == (Type::Int, Type::Time);
    if !fits {
        let message = format!(
            "`{}` is declared as {}, but is {} in IOstream",
            field.name, field.ty, given.ty
        );
        return Err(codes::TYPE_MISMATCH.at(table.span, message));
    }
    let unit = alias.and_then(|a| a.converted).unwrap_or(given.unit);
    Ok(Adopted {
        index,
        divisor: unit.scale() / given.unit.scale(),
    })
}

/// One tap for each trace and one for the host, each with all its demands.
fn events(wanted: Vec<Wanted>, args: &SourceOptions, stop: &Stop) -> Result<Vec<Input>, Failure> {
    let mut groups: Vec<(Source, Vec<Demand>, Vec<Outlet>)> = Vec::new();
    for Wanted {
        source,
        demand,
        outlet,
    } in wanted
    {
        let group = match groups.iter().position(|g| g.0 == source) {
            Some(known) => &mut groups[known],
            None => {
                groups.push((source, Vec::new(), Vec::new()));
                groups.last_mut().expect("just pushed")
            }
        };
        group.2.push(Outlet {
            demand: group.1.len(),
            ..outlet
        });
        group.1.push(demand);
    }
    let mut inputs = Vec::new();
    for (source, demands, outlets) in groups {
        inputs.extend(source::inputs(&source, args, &demands, outlets)?);
    }
    source::begin(args, stop);
    Ok(inputs)
}
