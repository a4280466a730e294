//! Golden cases: a query, its input and its output, in a text that can be checked by hand.
//!
//! ```text
//! # A row leaves [Rows 2] when two newer rows have arrived.
//! stream io (vm text, bytes int)
//! query  SELECT vm, sum(bytes) FROM io [Rows 2]
//!        GROUP BY vm
//! < 0s  a 4096
//! > 0s  + a 4096
//! < 1s  b 1024
//! > 1s  + b 1024
//! ```
//!
//! The name of the file is the claim, the comment at the top states it in a sentence. Then, in this
//! order:
//!
//! | line | means |
//! | --- | --- |
//! | `stream NAME (column type [unit], ..)` | a stream of `int`, `float`, `text`, `bool`, `time`, in `ns`, `us`, `sectors`, `bytes` |
//! | `relation NAME (..)` | a relation |
//! | `builtin NAME (column, ..)` | a stream of the catalog; the input gives these columns, `ts` is the time, the others are NULL |
//! | `ticks` | time is an integer tick and "second" means one, as in scripts; else it is in nanoseconds |
//! | `late N` | the number of late rows, which are dropped and counted |
//! | `memory BYTES` | the memory limit of the query |
//! | `query TEXT` | the query; lines that begin with a space continue it |
//! | `! TEXT` | a line of the diagnostics, as `weir check` prints them |
//! | `< TIME [SOURCE] VALUE..` | a row of a stream (the source is optional where there is only one) |
//! | `< TIME [SOURCE] + VALUE..`, `-` | a row is inserted into a relation, or retracted |
//! | `< TIME [SOURCE]` | a heartbeat: no more rows at or before that time from this source, or from any |
//! | `> TIME VALUE..` | a row of the resulting stream |
//! | `> TIME + VALUE..`, `-` | a row is inserted into the resulting relation, or retracted |
//! | `> fails MESSAGE` | the query fails; it may emit the lines above first, in order; `..` matches any end |
//!
//! Times are `3s`, `1.5s`, `250ms`, `10us`, `7ns`, or with `ticks` plain numbers. A value is `NULL`
//! or a value of its column's type; a text with spaces is in double quotes, a tally in braces. The
//! order of output rows within an instant is undefined. Input lines are pushed in their order;
//! output lines may be anywhere, and `WEIR_BLESS=1` puts each after the input of its time.

use std::fs;
use std::path::{Path, PathBuf};

use weir_model::{Catalog, Declaration, Field, Schema, Shape, Type, Unit, Value};
use weir_testing::repository::root;

use super::Row;
use super::changes::Changes;
use super::feed::Event;
use super::history::Element;
use super::words::{Word, words};

/// The folder of the golden cases.
pub fn folder() -> PathBuf {
    root().join("tests/cases")
}

/// The files of all golden cases.
pub fn files() -> Vec<PathBuf> {
    let folder = folder();
    let mut files = Vec::new();
    collect(&folder, &mut files);
    files.sort();
    assert!(!files.is_empty(), "there are cases in {}", folder.display());
    files
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the folder of cases can be read") {
        let path = entry.expect("the folder of cases can be read").path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|e| e == "test") {
            files.push(path);
        }
    }
}

/// One case file.
#[derive(Clone, Debug)]
pub struct Case {
    /// The lines before the input, without diagnostics.
    head: Vec<String>,
    /// The sources it reads.
    pub sources: Vec<Source>,
    /// Instants per second: 1 with `ticks`.
    pub second: i64,
    /// The number of late rows.
    pub late: u64,
    /// The memory limit of the query.
    pub bytes_max: Option<usize>,
    /// The query's text.
    pub query: String,
    /// The input.
    pub input: Vec<Input>,
    /// The expected output.
    pub expected: Expected,
    /// Comments that precede the next line of input.
    comments: Vec<String>,
}

/// A source of a case.
#[derive(Clone, Debug)]
pub struct Source {
    /// Its declaration.
    pub declaration: Declaration,
    /// For each value of an input line, its column.
    columns: Vec<usize>,
}

/// A line of input.
#[derive(Clone, Debug)]
pub struct Input {
    /// The line in the file, with the comments above it.
    text: String,
    /// The timestamp.
    pub ts: i64,
    /// The source, by its position; `None` means every one.
    pub source: Option<usize>,
    /// The row; `None` is a heartbeat.
    pub element: Option<Element>,
}

/// The expected output of a case.
#[derive(Clone, Debug, Default)]
pub struct Expected {
    /// The rendered diagnostics, if the query is rejected.
    pub diagnostics: Vec<String>,
    /// What follows the time in the output lines.
    pub lines: Vec<(i64, String)>,
    /// The message with which the query fails.
    pub failure: Option<String>,
}

impl Case {
    /// Parses a case.
    ///
    /// # Errors
    /// The first invalid line, and the reason.
    pub fn parse(text: &str) -> Result<Case, String> {
        let mut case = Case {
            head: vec![],
            sources: vec![],
            second: 1_000_000_000,
            late: 0,
            bytes_max: None,
            query: String::new(),
            input: vec![],
            expected: Expected::default(),
            comments: vec![],
        };
        for (number, line) in text.lines().enumerate() {
            case.line(line.trim_end())
                .map_err(|why| format!("line {}: {why}: {line}", number + 1))?;
        }
        if case.query.is_empty() {
            return Err("there is no query".into());
        }
        Ok(case)
    }

    fn line(&mut self, line: &str) -> Result<(), String> {
        let (keyword, rest) = line.split_once(' ').unwrap_or((line, ""));
        match keyword {
            "<" => {
                let mut text = std::mem::take(&mut self.comments);
                text.push(line.to_string());
                let input = self.input_line(rest.trim(), text.join("\n"))?;
                self.input.push(input);
                return Ok(());
            }
            ">" => return self.output_line(rest.trim()),
            "!" => {
                self.expected.diagnostics.push(rest.to_string());
                return Ok(());
            }
            // Indented lines continue the query.
            "" if !line.is_empty() => {
                self.query.push('\n');
                self.query.push_str(line);
            }
            "" => {}
            _ if line.starts_with('#') && !self.input.is_empty() => {
                self.comments.push(line.to_string());
                return Ok(());
            }
            _ if line.starts_with('#') => {}
            "stream" => self.sources.push(declared(rest, Shape::Stream)?),
            "relation" => self.sources.push(declared(rest, Shape::Relation)?),
            "builtin" => self.sources.push(builtin(rest)?),
            "ticks" => self.second = 1,
            "late" => self.late = rest.trim().parse().map_err(|_| "not a number")?,
            "memory" => self.bytes_max = Some(rest.trim().parse().map_err(|_| "not a number")?),
            "query" => self.query = rest.trim_start().to_string(),
            _ => return Err("no such line".into()),
        }
        self.head.push(line.to_string());
        Ok(())
    }

    fn input_line(&self, rest: &str, text: String) -> Result<Input, String> {
        let mut words = words(rest)?;
        if words.is_empty() {
            return Err("an input line begins with a time".into());
        }
        let ts = self.time(&words.remove(0).text)?;
        let named = |t: &Word| {
            let is = |s: &Source| s.declaration.name.eq_ignore_ascii_case(&t.text);
            self.sources.iter().position(is)
        };
        let source = match words.first().filter(|t| !t.quoted).and_then(named) {
            Some(source) => {
                words.remove(0);
                Some(source)
            }
            None if self.sources.len() == 1 => Some(0),
            None if words.is_empty() => None,
            None => return Err("with several sources a row names its own".into()),
        };
        let element = match source {
            Some(source) if !words.is_empty() => Some(self.sources[source].element(ts, &words)?),
            _ => None,
        };
        Ok(Input {
            text,
            ts,
            source,
            element,
        })
    }

    fn output_line(&mut self, rest: &str) -> Result<(), String> {
        if let Some(message) = rest.strip_prefix("fails ") {
            self.expected.failure = Some(message.to_string());
            return Ok(());
        }
        let (time, row) = rest.split_once(' ').unwrap_or((rest, ""));
        let ts = self.time(time)?;
        self.expected.lines.push((ts, row.trim().to_string()));
        Ok(())
    }

    /// The streams and relations of the case.
    pub fn catalog(&self) -> Catalog {
        let declarations = self.sources.iter().map(|s| s.declaration.clone());
        Catalog {
            declarations: declarations.collect(),
            ..Catalog::default()
        }
    }

    /// The input as events.
    pub fn feed(&self) -> Vec<Event> {
        let event = |input: &Input| match (&input.element, input.source) {
            (Some(element), Some(source)) => Event::Row(source, element.clone()),
            (_, source) => Event::Heartbeat(source, input.ts),
        };
        self.input.iter().map(event).collect()
    }

    /// The names of the sources, in the order of their positions.
    pub fn source_names(&self) -> Vec<String> {
        let names = self.sources.iter().map(|s| s.declaration.name.clone());
        names.collect()
    }

    /// The expected output, given the types of its columns.
    ///
    /// # Errors
    /// The first line that does not match them.
    pub fn expected_changes(&self, schema: &Schema, shape: Shape) -> Result<Changes, String> {
        let mut changes = Changes::default();
        for (ts, line) in &self.expected.lines {
            let wrong = |why: &str| format!("`> {} {line}`: {why}", self.write_time(*ts));
            let (weight, values) = match (shape, line.split_at_checked(1)) {
                (Shape::Stream, _) => (1, line.as_str()),
                (Shape::Relation, Some(("+", values))) => (1, values),
                (Shape::Relation, Some(("-", values))) => (-1, values),
                _ => return Err(wrong("a relation's row comes (+) or goes (-)")),
            };
            let words = words(values).map_err(|why| wrong(&why))?;
            if words.len() != schema.len() {
                return Err(wrong(&format!("the result has {} columns", schema.len())));
            }
            let values = words.iter().zip(&schema.fields).map(|(t, f)| t.value(f.ty));
            let row: Row = values
                .collect::<Result<_, _>>()
                .map_err(|why| wrong(&why))?;
            let other = changes.instants.get(ts).and_then(|rows| rows.get(&row));
            if other.is_some_and(|other| other.signum() != weight) {
                return Err(wrong("what comes and goes at one instant is no change"));
            }
            changes.add(*ts, row, weight);
        }
        Ok(changes)
    }

    /// The text of the case with another output.
    pub fn with_outcome(&self, outcome: &Expected) -> String {
        let mut lines = self.head.clone();
        while lines.last().is_some_and(String::is_empty) {
            lines.pop();
        }
        lines.extend(outcome.diagnostics.iter().map(|d| format!("! {d}")));
        let mut output = outcome.lines.iter().peekable();
        for (i, input) in self.input.iter().enumerate() {
            lines.push(input.text.clone());
            let next = self.input.get(i + 1..).unwrap_or(&[]);
            let next = next.iter().map(|n| n.ts).min().unwrap_or(i64::MAX);
            // An instant's output follows its last input line.
            while let Some((ts, row)) = output.next_if(|(ts, _)| *ts < next) {
                lines.push(format!("> {} {row}", self.write_time(*ts)));
            }
        }
        lines.extend(output.map(|(ts, row)| format!("> {} {row}", self.write_time(*ts))));
        lines.extend(self.comments.clone());
        if let Some(message) = &outcome.failure {
            lines.push(format!("> fails {message}"));
        }
        lines.iter().flat_map(|l| [l.trim_end(), "\n"]).collect()
    }

    /// An instant in the format of the case.
    pub fn write_time(&self, ts: i64) -> String {
        if self.second == 1 {
            return ts.to_string();
        }
        let units = [
            ("s", 1_000_000_000),
            ("ms", 1_000_000),
            ("us", 1_000),
            ("ns", 1),
        ];
        let fits = |&&(_, size): &&(&str, i64)| ts % size == 0;
        let (unit, size) = units.iter().find(fits).expect("1 ns always fits");
        format!("{}{unit}", ts / size)
    }

    fn time(&self, text: &str) -> Result<i64, String> {
        if self.second == 1 {
            return text.parse().map_err(|_| "a tick is an integer".into());
        }
        let at = text
            .find(|c: char| c.is_ascii_alphabetic())
            .ok_or("a time has a unit: 3s, 250ms")?;
        let size = match &text[at..] {
            "s" => 1_000_000_000,
            "ms" => 1_000_000,
            "us" => 1_000,
            "ns" => 1,
            _ => return Err("a time is in s, ms, us or ns".into()),
        };
        if let Ok(whole) = text[..at].parse::<i64>() {
            return whole.checked_mul(size).ok_or("too far away".into());
        }
        let number: f64 = text[..at].parse().map_err(|_| "not a time")?;
        Ok((number * size as f64).round() as i64)
    }
}

impl Source {
    fn element(&self, ts: i64, words: &[Word]) -> Result<Element, String> {
        let declaration = &self.declaration;
        let (weight, words) = match (declaration.shape, words.split_first()) {
            (Shape::Stream, _) => (1, words),
            (Shape::Relation, Some((sign, rest))) if sign.text == "+" => (1, rest),
            (Shape::Relation, Some((sign, rest))) if sign.text == "-" => (-1, rest),
            _ => return Err("a relation's row comes (+) or goes (-)".into()),
        };
        if words.len() != self.columns.len() {
            return Err(format!(
                "{} has {} columns",
                declaration.name,
                self.columns.len()
            ));
        }
        let fields = &declaration.schema.fields;
        let mut row = vec![Value::Null; fields.len()];
        for (word, column) in words.iter().zip(&self.columns) {
            row[*column] = word.value(fields[*column].ty)?;
        }
        // In a stream of the catalog the time of a row is also one of its columns.
        let timed = |f: &Field| f.name == "ts" && f.ty == Type::Time;
        if let Some(column) = fields.iter().position(timed)
            && !self.columns.contains(&column)
        {
            row[column] = Value::Int(ts);
        }
        Ok(Element { ts, weight, row })
    }
}

fn declared(rest: &str, shape: Shape) -> Result<Source, String> {
    let (name, columns) = named_list(rest)?;
    let fields = columns
        .iter()
        .map(|c| field(c))
        .collect::<Result<Vec<_>, _>>()?;
    Ok(Source {
        columns: (0..fields.len()).collect(),
        declaration: Declaration::new(name, shape, Schema::new(fields)),
    })
}

fn builtin(rest: &str) -> Result<Source, String> {
    let (name, columns) = named_list(rest)?;
    let catalog = Catalog::builtin();
    let declaration = catalog
        .find(&name)
        .ok_or("the catalog has no such stream")?;
    let position = |c: &String| declaration.schema.find(c).map(|(i, _)| i);
    Ok(Source {
        columns: columns
            .iter()
            .map(|c| position(c).ok_or(format!("it has no column {c}")))
            .collect::<Result<_, _>>()?,
        declaration: declaration.clone(),
    })
}

fn named_list(rest: &str) -> Result<(String, Vec<String>), String> {
    let (name, list) = rest.split_once('(').ok_or("columns stand in parentheses")?;
    let list = list
        .strip_suffix(')')
        .ok_or("columns stand in parentheses")?;
    let items = list.split(',').map(|c| c.trim().to_string());
    Ok((name.trim().to_string(), items.collect()))
}

fn field(text: &str) -> Result<Field, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let (name, ty, unit) = match words[..] {
        [name, ty] => (name, ty, ""),
        [name, ty, unit] => (name, ty, unit),
        _ => return Err("a column is a name, a type and perhaps a unit".into()),
    };
    let ty = match ty {
        "int" => Type::Int,
        "float" => Type::Float,
        "text" => Type::Text,
        "bool" => Type::Bool,
        "time" => Type::Time,
        _ => return Err(format!("no type {ty}")),
    };
    let unit = match unit {
        "" if ty == Type::Time => Unit::Nanoseconds,
        "" => Unit::None,
        "ns" => Unit::Nanoseconds,
        "us" => Unit::Microseconds,
        "sectors" => Unit::Sectors,
        "bytes" => Unit::Bytes,
        _ => return Err(format!("no unit {unit}")),
    };
    Ok(Field::new(name, ty).unit(unit).nullable())
}
