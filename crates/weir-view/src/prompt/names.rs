//! [`Names`]: the streams, relations, views, columns and functions that a statement can name.

use std::cell::OnceCell;
use std::rc::Rc;

use weir_model::{Catalog, Declaration, Field, StoredView};
use weir_query::compile;
use weir_runtime::question::{options, with_views};
use weir_runtime::shipped::ShippedStream;
use weir_runtime::source::SourceOptions;
use weir_runtime::views;

/// A stream, a relation or a view.
#[derive(Clone, Debug)]
pub struct NamedSource {
    /// Its name.
    pub name: String,
    /// `stream`, `relation`, `probe` or `view`.
    pub kind: &'static str,
    /// What it is, in a sentence.
    pub doc: String,
    /// Its columns.
    pub columns: Vec<Field>,
}

/// The names that a statement can use, gathered when they are needed.
pub struct KnownNames {
    sources: Rc<NamesOfSources>,
    defined: Vec<NamedSource>,
    all: OnceCell<Names>,
}

/// The names of the sources of a prompt.
struct NamesOfSources {
    /// Where they are read, unless at a monitor.
    source: Option<SourceOptions>,
    names: OnceCell<Names>,
}

impl KnownNames {
    /// The names of these sources, or those at a monitor.
    pub fn new(source: Option<SourceOptions>) -> KnownNames {
        KnownNames {
            sources: Rc::new(NamesOfSources {
                source,
                names: OnceCell::new(),
            }),
            defined: Vec::new(),
            all: OnceCell::new(),
        }
    }

    /// The names of the same sources, and these definitions.
    pub fn with(&self, defined: Vec<NamedSource>) -> KnownNames {
        KnownNames {
            sources: self.sources.clone(),
            defined,
            all: OnceCell::new(),
        }
    }

    /// All names.
    pub fn get(&self) -> &Names {
        self.all.get_or_init(|| {
            let gather = || match &self.sources.source {
                Some(source) => Names::of_sources(source),
                None => Names::of_fleet(),
            };
            let mut names = self.sources.names.get_or_init(gather).clone();
            names.sources.extend(self.defined.iter().cloned());
            names
        })
    }
}

/// The names that a statement can use.
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// Streams, relations and views, in the order in which they are listed.
    pub sources: Vec<NamedSource>,
}

impl Names {
    /// The names at a monitor.
    pub fn of_fleet() -> Names {
        let catalog = Catalog::builtin();
        let mut sources: Vec<NamedSource> = catalog.declarations.iter().map(declared).collect();
        sources.extend(stored(catalog));
        Names { sources }
    }

    /// The names of the sources, of the host's probes among them. A source that cannot be opened
    /// has those of every source; a query reports the reason.
    pub fn of_sources(source: &SourceOptions) -> Names {
        let capabilities = source.capabilities();
        let catalog = capabilities.map_or_else(|_| Catalog::builtin(), |c| c.catalog());
        let mut sources: Vec<NamedSource> = catalog.declarations.iter().map(declared).collect();
        if source.has_host() {
            let shipped = ShippedStream::all().into_iter().filter_map(|stream| {
                let declaration = stream.declaration().ok()?;
                Some(NamedSource {
                    kind: "probe",
                    ..declared(&declaration)
                })
            });
            sources.extend(shipped);
        }
        sources.extend(stored(catalog));
        Names { sources }
    }

    /// The source called `name`, in any case.
    pub fn find(&self, name: &str) -> Option<&NamedSource> {
        let mut sources = self.sources.iter();
        sources.find(|source| source.name.eq_ignore_ascii_case(name))
    }
}

/// The user's stored views that are valid over a catalog.
fn stored(catalog: Catalog) -> Vec<NamedSource> {
    // A damaged library is reported where a query reads it.
    let views = views::read().unwrap_or_default();
    let catalog = with_views(catalog, &views);
    let named = |view: &StoredView| {
        let query = format!("select * from {}", super::complete::spelled(&view.name));
        let checked = compile(&query, &catalog, &options(false)).ok()?;
        Some(NamedSource {
            name: view.name.clone(),
            kind: "view",
            doc: "a stored view".to_owned(),
            columns: checked.plan.schema.fields.clone(),
        })
    };
    views.iter().filter_map(named).collect()
}

fn declared(declaration: &Declaration) -> NamedSource {
    NamedSource {
        name: declaration.name.clone(),
        kind: declaration.shape.name(),
        doc: declaration.doc.clone(),
        columns: declaration.schema.fields.clone(),
    }
}
