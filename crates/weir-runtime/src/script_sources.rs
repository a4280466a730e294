//! The sources of a script's streams: STREAM source files, traces, the live tap.
//!
//! A file is a STREAM source file if its first line is a type line. Otherwise it is a trace, and
//! the script declares columns of `IOstream`. Nothing else in the file is considered.
//!
//! A stream that a script declares over a trace gets the columns of `IOstream` by their names,
//! those of the thesis or the plain ones. Where its source pairs requests with responses, joins of
//! the two are computed from a second stream, of pairs with the same columns ([`pairings`]).

use weir_model::event::{IO_PAIRS, io_schema, iostream_schema};
use weir_model::suggest;
use weir_model::{
    Alias, Capabilities, Declaration, Demand, Field, NANOS_PER_MICRO, Predicate, Schema, Shape,
    Type,
};
use weir_query::diagnostic::{Diagnostic, codes};
use weir_query::place::pairing::PairingGuarantee;
use weir_query::script::ScriptTable;
use weir_query::{Expr, Script};
use weir_tap::TapError;
use weir_tap::format::Input as Bytes;
use weir_tap::format::stream_tap::StreamTap;
use weir_tap::source::file::FirstLine;
use weir_tap::source::{FILE, LIVE, STANDARD_INPUT, SourceName};

use crate::failure::Failure;
use crate::question::QueryText;
use crate::run_loop::{ColumnMapping, MappedColumn, OWN_STREAM, Route, Stop, TapInput};
use crate::source::{self, SourceOptions};

/// The live source as scripts write it.
pub const LIVE_TAP: &str = "tap:live";

/// Rows of a trace or of the live tap that one source of the engine needs.
struct Wanted {
    source: SourceName,
    demand: Demand,
    route: Route,
}

/// Opens the sources that a script's queries need.
///
/// # Errors
/// When a file cannot be read, the host cannot be observed, or a declaration does not match its
/// source.
pub fn open(
    script: &Script,
    question: &QueryText,
    demands: &[Demand],
    args: &SourceOptions,
    stop: &Stop,
) -> Result<Vec<TapInput>, Failure> {
    args.opened.end_with(stop);
    if demands.is_empty() {
        return source::counted(args);
    }
    let (mut inputs, mut wanted, mut off) = (Vec::new(), Vec::new(), Vec::new());
    for demand in demands {
        let is_it = |t: &&ScriptTable| t.declaration.name.eq_ignore_ascii_case(&demand.stream);
        let of_pairs = |t: &&ScriptTable| pairs_name(t).eq_ignore_ascii_case(&demand.stream);
        if let Some(table) = script.tables.iter().find(of_pairs) {
            match mapped_pairs(table, demand) {
                Ok((demand, mapping)) => wanted.push(Wanted {
                    source: named(&table.source),
                    route: route(&pairs_name(table), Some(mapping)),
                    demand,
                }),
                Err(diagnostic) => off.push(diagnostic),
            }
            continue;
        }
        let Some(table) = script.tables.iter().find(is_it) else {
            wanted.extend(predefined(script, demand, args)?);
            continue;
        };
        let source = named(&table.source);
        match ticks(&source, args)? {
            Some(bytes) => inputs.push(input(bytes, &table.declaration, args)?),
            None => match mapped(table, demand) {
                Ok((demand, mapping)) => wanted.push(Wanted {
                    source,
                    route: route(&table.declaration.name, Some(mapping)),
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

/// The capabilities of the sources from which a script's queries read predefined streams.
///
/// # Errors
/// When one of them cannot be opened.
pub fn capabilities(script: &Script, args: &SourceOptions) -> Result<Capabilities, Failure> {
    let predefined = |name: &&str| {
        let is_it = |t: &ScriptTable| t.declaration.name.eq_ignore_ascii_case(name);
        !script.tables.iter().any(is_it) && !name.eq_ignore_ascii_case(OWN_STREAM)
    };
    match read(script).find(predefined) {
        Some(_) => args.capabilities_of(&of_predefined(script, args)),
        None => Ok(Capabilities::default()),
    }
}

/// The names of the streams and relations that a script's queries read.
fn read(script: &Script) -> impl Iterator<Item = &str> {
    let sources = script.queries.iter().flat_map(|q| q.plan.sources());
    sources.map(|declaration| declaration.name.as_str())
}

/// The properties of requests and responses that the sources of a script's events guarantee;
/// `predefined` are the capabilities of those of predefined streams.
///
/// # Errors
/// When one of the sources that are read cannot be opened.
pub fn pairings(
    script: &Script,
    args: &SourceOptions,
    predefined: &Capabilities,
) -> Result<Vec<PairingGuarantee>, Failure> {
    let of_ticks = || "the rows of a STREAM source file are not requests";
    let mut pairings = Vec::new();
    let is_read = |t: &&ScriptTable| read(script).any(|name| name == t.declaration.name);
    for table in script.tables.iter().filter(is_read) {
        let Ok(columns) = columns(table) else {
            continue;
        };
        let source = named(&table.source);
        let guarantee = match holds_ticks(&source, args)? {
            true => Err(of_ticks().into()),
            false => args.capabilities_of(&[source])?.pairs(&IO_PAIRS),
        };
        pairings.extend(pairing(table, &columns, guarantee));
    }
    let declared = |name: &str| {
        let mut tables = script.tables.iter();
        tables.any(|t| t.declaration.name.eq_ignore_ascii_case(name))
    };
    if !declared(IO_PAIRS.events) && !declared(IO_PAIRS.finished) {
        let guarantee = predefined.pairs(&IO_PAIRS);
        pairings.push(PairingGuarantee::new(&IO_PAIRS, NANOS_PER_MICRO, guarantee));
    }
    Ok(pairings)
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
    columns: &[MappedColumn],
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
    for (i, (mapped, field)) in columns.iter().zip(own).enumerate() {
        response.push(Some(column(i, field)));
        request.push(match &io.request[mapped.index] {
            Some(_) if mapped.index == schema.index("ts") => {
                let of_request = Some(column(fields.len(), field));
                fields.push(Field {
                    name: format!("{} of the request", field.name),
                    ..field.clone().nullable()
                });
                of_request
            }
            Some(letter) if mapped.index == io.kind => Some(letter.clone()),
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
fn mapped_pairs(
    table: &ScriptTable,
    demand: &Demand,
) -> Result<(Demand, ColumnMapping), Diagnostic> {
    let schema = io_schema();
    let mut columns = columns(table)?;
    let times = columns.iter().filter(|c| c.index == schema.index("ts"));
    let divisors = times.map(|time| time.divisor).chain([NANOS_PER_MICRO]);
    let of_request: Vec<MappedColumn> = divisors
        .map(|divisor| MappedColumn {
            index: schema.index("issue_ts"),
            divisor,
        })
        .collect();
    columns.extend(of_request);
    Ok(demanded(IO_PAIRS.finished, columns, demand))
}

/// The source that a script names.
fn named(text: &str) -> SourceName {
    match text {
        LIVE_TAP => LIVE.named(""),
        text => match SourceName::new(text) {
            input if input.is(&STANDARD_INPUT) => input,
            _ => FILE.named(text),
        },
    }
}

/// The sources of predefined streams.
fn of_predefined(script: &Script, args: &SourceOptions) -> Vec<SourceName> {
    match &script.iostream_source {
        Some(text) => vec![named(text)],
        None => args.sources(),
    }
}

/// The rows of a predefined stream, as `IOstream`: of the sources that have it, or else of the host
/// if there is a live source.
fn predefined(
    script: &Script,
    demand: &Demand,
    args: &SourceOptions,
) -> Result<Vec<Wanted>, TapError> {
    let names = of_predefined(script, args);
    let mut serving = Vec::new();
    for name in &names {
        let source = args.open(name)?;
        if source.capabilities()?.stream(&demand.stream).is_some() {
            serving.push(name.clone());
        }
    }
    if serving.is_empty() {
        let live = names.iter().find(|name| name.kind.is_live);
        serving.extend(live.or(names.first()).cloned());
    }
    let wanted = |source| Wanted {
        source,
        demand: demand.clone(),
        route: route(&demand.stream, None),
    };
    Ok(serving.into_iter().map(wanted).collect())
}

/// In a trace, the thesis's ticks are microseconds.
fn route(source: &str, mapping: Option<ColumnMapping>) -> Route {
    Route {
        demand: 0,
        source: source.into(),
        instant_ns: NANOS_PER_MICRO,
        mapping,
    }
}

/// Whether a source is a STREAM source file and not a trace: its type line decides. For an empty
/// file, the reader of source files reports that this line is missing.
fn holds_ticks(name: &SourceName, args: &SourceOptions) -> Result<bool, TapError> {
    let source = args.open(name)?;
    let Some(file) = source.file() else {
        return Ok(false);
    };
    Ok(match file.first_line()? {
        FirstLine::TypeLine => true,
        FirstLine::Nothing => args.from_format.is_none(),
        FirstLine::Other => false,
    })
}

/// The bytes of a STREAM source file; `None` if the source is none.
fn ticks(name: &SourceName, args: &SourceOptions) -> Result<Option<Bytes>, TapError> {
    if !holds_ticks(name, args)? {
        return Ok(None);
    }
    let source = args.open(name)?;
    source.file().map(|file| file.input()).transpose()
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

/// A STREAM source file as the table that a script declares.
fn input(bytes: Bytes, declared: &Declaration, args: &SourceOptions) -> Result<TapInput, TapError> {
    Ok(TapInput {
        tap: Box::new(StreamTap::open(bytes, declared, args.strict)?),
        live: false,
        span_ns: args.span_ns().map(|ns| (ns / NANOS_PER_MICRO).max(1)),
        routes: vec![Route {
            instant_ns: 1,
            ..route(&declared.name, None)
        }],
    })
}

/// The demand for the columns that a table declares over `IOstream`, and their mapping.
fn mapped(table: &ScriptTable, demand: &Demand) -> Result<(Demand, ColumnMapping), Diagnostic> {
    Ok(demanded(IO_PAIRS.events, events_columns(table)?, demand))
}

/// The columns of `IOstream` that a table declares, which must be a stream.
///
/// # Errors
/// When it is not a stream, or a column is not available.
pub fn events_columns(table: &ScriptTable) -> Result<Vec<MappedColumn>, Diagnostic> {
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
fn columns(table: &ScriptTable) -> Result<Vec<MappedColumn>, Diagnostic> {
    let fields = table.declaration.schema.fields.iter();
    fields.map(|field| column(field, table)).collect()
}

/// The demand for `columns`, as far as `demand` includes them.
fn demanded(stream: &str, columns: Vec<MappedColumn>, demand: &Demand) -> (Demand, ColumnMapping) {
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
    (demand, ColumnMapping(columns))
}

fn column(field: &Field, table: &ScriptTable) -> Result<MappedColumn, Diagnostic> {
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
    Ok(MappedColumn {
        index,
        divisor: unit.scale() / given.unit.scale(),
    })
}

/// One tap for each trace and one for the host, each with all its demands.
fn events(
    wanted: Vec<Wanted>,
    args: &SourceOptions,
    stop: &Stop,
) -> Result<Vec<TapInput>, Failure> {
    let mut groups: Vec<(SourceName, Vec<Demand>, Vec<Route>)> = Vec::new();
    for Wanted {
        source,
        demand,
        route,
    } in wanted
    {
        let group = match groups.iter().position(|g| g.0 == source) {
            Some(known) => &mut groups[known],
            None => {
                groups.push((source, Vec::new(), Vec::new()));
                groups.last_mut().expect("just pushed")
            }
        };
        group.2.push(Route {
            demand: group.1.len(),
            ..route
        });
        group.1.push(demand);
    }
    let mut inputs = Vec::new();
    for (source, demands, routes) in groups {
        inputs.extend(source::inputs(&[source], args, &demands, routes)?);
    }
    source::begin(args, stop);
    Ok(inputs)
}
