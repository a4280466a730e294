//! The streams of probes that weir ships: text files of `CREATE STREAM .. AS PROBE`, each usable by
//! its name in any query of this host.

use weir_model::Declaration;
use weir_query::syntax::ast::{Statement, StreamDefinition};
use weir_query::syntax::parse;
use weir_tap::probe::{ProbeError, ProbeStream};

/// The files, in the order of the list of streams.
static FILES: &[&str] = &[
    include_str!("sched.cql"),
    include_str!("net.cql"),
    include_str!("memory.cql"),
    include_str!("nvme.cql"),
    include_str!("scsi.cql"),
    include_str!("ext4.cql"),
    include_str!("jbd2.cql"),
    include_str!("writeback.cql"),
    include_str!("io_uring.cql"),
];

/// A shipped stream.
#[derive(Clone, Debug)]
pub struct ShippedStream {
    /// Its name.
    pub name: String,
    /// Its meaning: the comment before its definition.
    pub doc: String,
    /// Its definitions for different kernels; the first one that this host has is used.
    definitions: Vec<StreamDefinition>,
}

impl ShippedStream {
    /// Every shipped stream, in the order of the files.
    pub fn all() -> Vec<ShippedStream> {
        let mut all: Vec<ShippedStream> = Vec::new();
        for file in FILES {
            for statement in parse(file).tree {
                let Statement::Stream(definition) = statement else {
                    continue;
                };
                let name = definition.name.value.clone();
                match all.iter_mut().find(|known| known.name == name) {
                    Some(known) => known.definitions.push(definition),
                    None => all.push(ShippedStream {
                        doc: comment_before(file, definition.name.span.start),
                        name,
                        definitions: vec![definition],
                    }),
                }
            }
        }
        all
    }

    /// The shipped stream called `name`.
    pub fn find(name: &str) -> Option<ShippedStream> {
        let mut all = ShippedStream::all().into_iter();
        all.find(|stream| stream.name.eq_ignore_ascii_case(name))
    }

    /// The stream on this host.
    ///
    /// # Errors
    /// What this host lacks.
    pub fn on_this_host(&self) -> Result<ProbeStream, ProbeError> {
        let mut error = None;
        for definition in &self.definitions {
            match ProbeStream::new(&definition.definition()) {
                Ok(stream) => return Ok(stream),
                Err(why) => error = error.or(Some(why)),
            }
        }
        Err(error.expect("a stream has a definition"))
    }

    /// Its declaration on this host, with its meaning.
    ///
    /// # Errors
    /// As [`ShippedStream::on_this_host`].
    pub fn declaration(&self) -> Result<Declaration, ProbeError> {
        Ok(Declaration {
            doc: self.doc.clone(),
            ..self.on_this_host()?.capabilities().declaration
        })
    }

    /// Its description, with what this host lacks of it.
    pub fn doc_on_this_host(&self) -> String {
        match self.on_this_host() {
            Ok(_) => self.doc.clone(),
            Err(why) => format!("{} (absent: {})", self.doc, why.message),
        }
    }
}

/// The comment in the lines before the statement at `at`.
fn comment_before(text: &str, at: usize) -> String {
    let mut lines: Vec<&str> = text[..at].lines().rev().skip(1).collect();
    let end = lines.iter().position(|line| !line.starts_with("-- "));
    lines.truncate(end.unwrap_or(lines.len()));
    let lines = lines
        .iter()
        .rev()
        .map(|line| line.trim_start_matches("-- "));
    lines.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_has_definitions_with_a_meaning_alone() {
        for file in FILES {
            let parsed = parse(file);
            assert!(parsed.diagnostics.is_empty(), "{:?}", parsed.diagnostics);
            let streams = parsed.tree.iter();
            let streams = streams
                .filter(|s| matches!(s, Statement::Stream(_)))
                .count();
            assert!(streams > 0 && streams == parsed.tree.len(), "{file}");
        }
        let builtin = weir_model::Catalog::builtin();
        for stream in ShippedStream::all() {
            assert!(stream.doc.len() > 10, "{} has no comment", stream.name);
            assert!(builtin.find(&stream.name).is_none(), "{}", stream.name);
        }
    }
}
