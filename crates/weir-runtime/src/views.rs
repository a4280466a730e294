//! The library of views of a user: a file with CREATE VIEW statements, which may be edited.
//!
//! It is `views.cql` in `$XDG_DATA_HOME/weir`, by default `~/.local/share/weir`; `WEIR_VIEWS` names
//! another file. Queries of this host and of recordings read it; a monitor has a library of its
//! own.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{env, fs, io, thread};

use weir_model::StoredView;
use weir_query::diagnostic::render;
use weir_query::library::{ViewChange, changed};
use weir_query::syntax::ast::Statement;
use weir_query::syntax::{parse, token};

use crate::failure::Failure;
use crate::lock::Lock;
use crate::private;
use crate::question::{QueryText, with_views};
use crate::source::SourceOptions;

/// Names another file.
pub const VARIABLE: &str = "WEIR_VIEWS";

/// How long a process waits for another one that changes the library.
const LOCK_WAIT: Duration = Duration::from_secs(5);

/// The file of the library; `None` where the user has no home.
pub fn path() -> Option<PathBuf> {
    let variable = |name| env::var_os(name).filter(|value| !value.is_empty());
    if let Some(file) = variable(VARIABLE) {
        return Some(file.into());
    }
    let data = variable("XDG_DATA_HOME").map(PathBuf::from);
    let of_home = || variable("HOME").map(|home| Path::new(&home).join(".local/share"));
    Some(data.or_else(of_home)?.join("weir/views.cql"))
}

/// The stored views; none without the file.
///
/// # Errors
/// When it cannot be read, or has something else than CREATE VIEW.
pub fn read() -> Result<Vec<StoredView>, Failure> {
    match path() {
        Some(path) => read_file(&path),
        None => Ok(Vec::new()),
    }
}

/// The stored views of a file; none without the file.
///
/// # Errors
/// As [`read`].
pub fn read_file(path: &Path) -> Result<Vec<StoredView>, Failure> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Failure::world(format!("{}: {error}", path.display()))),
    };
    let parsed = parse(&text);
    let file = path.display().to_string();
    if !parsed.diagnostics.is_empty() {
        let pictures = parsed.diagnostics.iter();
        let pictures: String = pictures.map(|d| render(d, &text, Some(&file))).collect();
        return Err(Failure::Words(format!(
            "the library of views is damaged; correct or move the file:\n{pictures}"
        )));
    }
    let view = |statement: Statement| match &statement {
        Statement::View(view) => Ok(StoredView {
            name: view.name.value.clone(),
            text: statement.to_string(),
        }),
        other => Err(Failure::world(format!(
            "{file}: a library of views has CREATE VIEW statements only, not `{other}`"
        ))),
    };
    parsed.tree.into_iter().map(view).collect()
}

/// The words of a view's text that may be names.
pub fn words(view: &StoredView) -> Vec<String> {
    let (lexemes, _) = token::tokens(&view.text, 0, view.text.len());
    let words = lexemes.iter().filter(|l| l.token == token::Token::Word);
    words
        .map(|l| view.text[l.span.range()].to_owned())
        .collect()
}

/// Applies the CREATE VIEW and DROP VIEW statements of a text to the library of the user. Returns
/// what was done, and the file.
///
/// # Errors
/// The diagnostics of the text, or when the file cannot be read or written.
pub fn change(
    text: &QueryText,
    args: &SourceOptions,
) -> Result<(Vec<ViewChange>, PathBuf), Failure> {
    let path = path().ok_or_else(|| {
        Failure::world(format!(
            "there is no place for views: set HOME, or {VARIABLE} to a file"
        ))
    })?;
    let folder = path.parent().unwrap_or(Path::new("."));
    let folder = if folder == Path::new("") {
        Path::new(".")
    } else {
        folder
    };
    let in_folder = |e: io::Error| Failure::world(format!("{}: {e}", folder.display()));
    private::directory(folder).map_err(in_folder)?;
    let _lock = lock(folder)?;
    let stored = read_file(&path)?;
    let of = |text: &str, catalog: &weir_model::Catalog, options: &_| {
        changed(text, &with_views(catalog.clone(), &stored), options)
    };
    let found = text.over(args, args.is_live(), of)?;
    let found = found.map_err(|d| text.failure(&d))?;
    write_file(&path, &found.views).map_err(in_folder)?;
    Ok((found.changes, path))
}

fn lock(folder: &Path) -> Result<Lock, Failure> {
    let end = Instant::now() + LOCK_WAIT;
    loop {
        let taken = Lock::take(folder);
        match taken.map_err(|e| Failure::world(format!("{}: {e}", folder.display())))? {
            Some(lock) => return Ok(lock),
            None if Instant::now() < end => thread::sleep(Duration::from_millis(20)),
            None => {
                let name = folder.display();
                let message = format!("{name}: another process changes the library; try again");
                return Err(Failure::world(message));
            }
        }
    }
}

/// Replaces the file at once, so that no reader and no crash sees a part of it.
///
/// # Errors
/// Those of the system calls; the file is then as before.
pub fn write_file(path: &Path, views: &[StoredView]) -> io::Result<()> {
    let folder = path.parent().filter(|f| *f != Path::new(""));
    let mut file = tempfile::NamedTempFile::new_in(folder.unwrap_or(Path::new(".")))?;
    for view in views {
        writeln!(file, "{};", view.text)?;
    }
    file.as_file().sync_all()?;
    file.persist(path).map_err(|e| e.error)?;
    Ok(())
}
