//! A TOML document whose keys are taken one by one; what is wrong, and what nobody took, is told
//! with its line.

use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};
use std::path::PathBuf;

use toml::Spanned;
use toml::de::{DeTable, DeValue};
use weir_model::suggest;

use super::Settings;

/// Most mistakes of one file that are told.
const FAULTS_MAX: usize = 50;

/// A file's text as a tree, and what is wrong with it.
pub struct Document<'t> {
    name: String,
    text: &'t str,
    root: Option<Spanned<DeTable<'t>>>,
    settings: Settings,
    faults: Vec<(usize, String)>,
    /// How many of them are in the syntax. Then what was read is a guess, and nothing is said of it.
    syntax_faults: usize,
}

impl<'t> Document<'t> {
    /// The tree of `text`; `name` is the file's.
    pub fn parse(name: &str, text: &'t str) -> Document<'t> {
        let (root, errors) = DeTable::parse_recoverable(text);
        let mut settings = BTreeMap::new();
        flatten("", root.get_ref(), &mut settings);
        let mut document = Document {
            name: name.to_owned(),
            text,
            root: Some(root),
            settings: Settings(settings),
            faults: Vec::new(),
            syntax_faults: errors.len(),
        };
        for error in errors {
            let at = error.span().map_or(0, |span| span.start);
            document.fault(at, error.message().to_owned());
        }
        document
    }

    /// The keys of the file itself; `read` takes those it knows.
    pub fn read<T>(&mut self, read: impl FnOnce(&mut Table<'_, 't>) -> T) -> T {
        let root = self.root.take().expect("a document is read once");
        let span = root.span();
        let mut table = Table::new(self, String::new(), span, root.into_inner());
        let value = read(&mut table);
        table.finish();
        value
    }

    /// What the file says, key by key.
    pub fn settings(&self) -> Settings {
        self.settings.clone()
    }

    /// What is wrong, in the order of the file, each with its line.
    pub fn faults(mut self) -> Vec<String> {
        if self.syntax_faults > 0 {
            self.faults.truncate(self.syntax_faults);
        }
        self.faults.sort();
        let told = self.faults.iter().take(FAULTS_MAX).map(|(at, text)| {
            let line = self.text[..*at].lines().count().max(1);
            let fresh = self.text[..*at].ends_with('\n') as usize;
            format!("weir: {}:{}: {text}", self.name, line + fresh)
        });
        let mut told: Vec<String> = told.collect();
        if let Some(more) = self.faults.len().checked_sub(FAULTS_MAX + 1) {
            told.push(format!("weir: {}: and {} more", self.name, more + 1));
        }
        told
    }

    fn fault(&mut self, at: usize, text: String) {
        self.faults.push((at.min(self.text.len()), text));
    }
}

/// Every value with the path of its key. Tables of a list are told apart by their name, or by their
/// position.
fn flatten(path: &str, table: &DeTable<'_>, into: &mut BTreeMap<String, String>) {
    for (key, value) in table {
        let path = match path {
            "" => key.get_ref().to_string(),
            _ => format!("{path}.{}", key.get_ref()),
        };
        match value.get_ref() {
            DeValue::Table(table) => flatten(&path, table, into),
            DeValue::Array(items) if items.iter().any(|i| i.get_ref().is_table()) => {
                for (number, item) in items.iter().enumerate() {
                    let Some(table) = item.get_ref().as_table() else {
                        continue;
                    };
                    let name = table.get("name").and_then(|n| n.get_ref().as_str());
                    let name = name.map_or((number + 1).to_string(), str::to_owned);
                    flatten(&format!("{path} {name}"), table, into);
                }
            }
            other => {
                into.insert(path, shown(other));
            }
        }
    }
}

/// A value as a person would write it.
fn shown(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("{text:?}"),
        DeValue::Integer(number) => number.to_string(),
        DeValue::Float(number) => number.to_string(),
        DeValue::Boolean(flag) => flag.to_string(),
        DeValue::Datetime(time) => time.to_string(),
        DeValue::Array(items) => {
            let items: Vec<String> = items.iter().map(|i| shown(i.get_ref())).collect();
            format!("[{}]", items.join(", "))
        }
        DeValue::Table(_) => "{..}".to_owned(),
    }
}

/// A table of the file, of which known keys are taken.
pub struct Table<'d, 't> {
    document: &'d mut Document<'t>,
    /// What stands before its keys: `limits.`.
    path: String,
    span: Range<usize>,
    left: DeTable<'t>,
    known: Vec<&'static str>,
}

impl<'t> Table<'_, 't> {
    fn new<'d>(
        document: &'d mut Document<'t>,
        path: String,
        span: Range<usize>,
        left: DeTable<'t>,
    ) -> Table<'d, 't> {
        Table {
            document,
            path,
            span,
            left,
            known: Vec::new(),
        }
    }

    /// The text of `key`, as `parse` understands it; `None` if it is not there or wrong.
    pub fn text<T>(
        &mut self,
        key: &'static str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        let (at, value) = self.take(key)?;
        match value {
            DeValue::String(text) => match parse(&text) {
                Ok(value) => Some(value),
                Err(why) => self.wrong(at, key, &why),
            },
            other => {
                // Whoever leaves the quotes out has meant the number; the parser says what is missing.
                let number = matches!(other, DeValue::Integer(_) | DeValue::Float(_));
                let unit = if number { " with its unit" } else { "" };
                let found = shown(&other);
                self.wrong(
                    at,
                    key,
                    &format!("expected a text in quotes{unit}, found {found}"),
                )
            }
        }
    }

    /// The path of a file or directory.
    pub fn path(&mut self, key: &'static str) -> Option<PathBuf> {
        self.text(key, |text| match text {
            "" => Err("expected a path, found an empty text".to_owned()),
            text => Ok(PathBuf::from(text)),
        })
    }

    /// The texts of a list.
    pub fn texts<T>(
        &mut self,
        key: &'static str,
        mut parse: impl FnMut(&str) -> Result<T, String>,
    ) -> Option<Vec<T>> {
        let (at, value) = self.take(key)?;
        let DeValue::Array(items) = value else {
            let found = shown(&value);
            return self.wrong(at, key, &format!("expected a list of texts, found {found}"));
        };
        let mut texts = Vec::new();
        for item in items {
            let at = item.span().start;
            let parsed = match item.get_ref().as_str() {
                Some(text) => parse(text),
                None => Err(format!("expected a text, found {}", shown(item.get_ref()))),
            };
            match parsed {
                Ok(value) => texts.push(value),
                Err(why) => {
                    self.wrong::<()>(at, key, &why);
                }
            }
        }
        Some(texts)
    }

    /// A whole number in `range`.
    pub fn count(&mut self, key: &'static str, range: RangeInclusive<u32>) -> Option<usize> {
        let (at, value) = self.take(key)?;
        let number = value.as_integer().and_then(|number| {
            let digits = number.as_str().replace('_', "");
            u32::from_str_radix(&digits, number.radix()).ok()
        });
        match number {
            Some(number) if range.contains(&number) => Some(number as usize),
            _ => {
                let (least, most) = range.into_inner();
                let found = shown(&value);
                let why = format!("expected a whole number from {least} to {most}, found {found}");
                self.wrong(at, key, &why)
            }
        }
    }

    /// `true` or `false`.
    pub fn flag(&mut self, key: &'static str) -> Option<bool> {
        let (at, value) = self.take(key)?;
        match value.as_bool() {
            Some(flag) => Some(flag),
            None => {
                let found = shown(&value);
                self.wrong(at, key, &format!("expected true or false, found {found}"))
            }
        }
    }

    /// The table called `key`, of which `read` takes what it knows.
    pub fn table<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&mut Table<'_, 't>) -> T,
    ) -> Option<T> {
        let (at, value) = self.take(key)?;
        match value {
            DeValue::Table(table) => {
                let path = format!("{}{key}.", self.path);
                Some(self.read_below(path, at..at, table, read))
            }
            other => {
                let found = shown(&other);
                let why = format!("expected a table ([{}{key}]), found {found}", self.path);
                self.wrong(at, key, &why)
            }
        }
    }

    /// The tables of a list (`[[key]]`), each read by `read`.
    pub fn tables<T>(
        &mut self,
        key: &'static str,
        mut read: impl FnMut(&mut Table<'_, 't>) -> Option<T>,
    ) -> Vec<T> {
        let Some((at, value)) = self.take(key) else {
            return Vec::new();
        };
        let why = format!("expected tables ([[{}{key}]])", self.path);
        let DeValue::Array(items) = value else {
            self.wrong::<()>(at, key, &format!("{why}, found {}", shown(&value)));
            return Vec::new();
        };
        let mut found = Vec::new();
        for item in items {
            let span = item.span();
            match item.into_inner() {
                DeValue::Table(table) => {
                    let path = format!("{}{key}.", self.path);
                    found.extend(self.read_below(path, span, table, &mut read));
                }
                other => {
                    self.wrong::<()>(span.start, key, &format!("{why}, found {}", shown(&other)));
                }
            }
        }
        found
    }

    /// Says that something about the table as a whole is wrong.
    pub fn fault(&mut self, why: &str) {
        self.document.fault(self.span.start, why.to_owned());
    }

    /// Says that a key which must be there is missing; gives `None`.
    pub fn missing<T>(&mut self, key: &str, example: &str) -> Option<T> {
        let why = format!("`{}{key}` is missing; write {key} = {example}", self.path);
        self.fault(&why);
        None
    }

    fn read_below<T>(
        &mut self,
        path: String,
        span: Range<usize>,
        table: DeTable<'t>,
        read: impl FnOnce(&mut Table<'_, 't>) -> T,
    ) -> T {
        let mut below = Table::new(self.document, path, span, table);
        let value = read(&mut below);
        below.finish();
        value
    }

    /// Takes a key: where its value stands, and the value.
    fn take(&mut self, key: &'static str) -> Option<(usize, DeValue<'t>)> {
        self.known.push(key);
        let value = self.left.remove(key)?;
        Some((value.span().start, value.into_inner()))
    }

    fn wrong<T>(&mut self, at: usize, key: &str, why: &str) -> Option<T> {
        let text = format!("`{}{key}`: {why}", self.path);
        self.document.fault(at, text);
        None
    }

    /// What is left was asked for by nobody.
    fn finish(self) {
        for (key, _) in &self.left {
            let near = suggest::nearest(key.get_ref(), self.known.iter().copied());
            let help = match near {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("known here: {}", self.known.join(", ")),
            };
            let text = format!("unknown key `{}{}`; {help}", self.path, key.get_ref());
            self.document.fault(key.span().start, text);
        }
    }
}
