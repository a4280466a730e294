//! The fields of a tracepoint: the file `format` of tracefs (Documentation/trace/events.rst).

use std::path::{Path, PathBuf};
use std::{fs, io};

/// The mount points of tracefs.
const TRACEFS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// Bytes of the fields that all tracepoints have, which programs cannot read.
const COMMON_BYTES: usize = 8;

/// A field of a tracepoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormatField {
    /// Its name.
    pub name: String,
    /// Its type in C, without an array's length.
    pub ty: String,
    /// Its offset in the event.
    pub offset: usize,
    /// Its size.
    pub bytes: usize,
    /// Negative numbers are possible.
    pub is_signed: bool,
    /// What it is.
    pub kind: FieldKind,
}

/// What a field of a tracepoint is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldKind {
    /// A number.
    Number,
    /// This many numbers of one size.
    Numbers(usize),
    /// A text in the event.
    Text,
    /// A text elsewhere in the event: a word has its offset, from the event's start or from the end
    /// of the word.
    LocatedText {
        /// From the end of the word.
        is_relative: bool,
    },
    /// The address of a text.
    TextAddress,
    /// Anything else.
    Other,
}

/// The folder of tracefs, if it is mounted.
pub fn tracefs() -> Option<PathBuf> {
    let folders = TRACEFS
        .iter()
        .map(|folder| Path::new(folder).join("events"));
    folders.into_iter().find(|folder| folder.is_dir())
}

/// The names of all tracepoints: category and name.
///
/// # Errors
/// If tracefs cannot be read.
pub fn tracepoints() -> io::Result<Vec<(String, String)>> {
    let folder = tracefs().ok_or(io::ErrorKind::NotFound)?;
    let mut found = Vec::new();
    for category in fs::read_dir(folder)?.flatten() {
        let Ok(names) = fs::read_dir(category.path()) else {
            continue;
        };
        let category = category.file_name().to_string_lossy().into_owned();
        // Events of ftrace itself are no tracepoints.
        let names = names
            .flatten()
            .filter(|n| n.path().join("format").is_file());
        let names = names.map(|name| name.file_name().to_string_lossy().into_owned());
        if category != "ftrace" {
            found.extend(names.map(|name| (category.clone(), name)));
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// The fields of a tracepoint.
///
/// # Errors
/// If its file cannot be read.
pub fn read(category: &str, name: &str) -> io::Result<Vec<FormatField>> {
    let folder = tracefs().ok_or(io::ErrorKind::NotFound)?;
    let text = fs::read_to_string(folder.join(category).join(name).join("format"))?;
    Ok(parse(&text))
}

/// The fields in the text of a file `format`, without those that all tracepoints have.
pub fn parse(text: &str) -> Vec<FormatField> {
    let lines = text.lines().filter_map(|line| field(line.trim()));
    lines.filter(|field| field.offset >= COMMON_BYTES).collect()
}

/// `field:char comm[16]; offset:8; size:16; signed:0;`, with tabs between the parts.
fn field(line: &str) -> Option<FormatField> {
    let (mut declared, mut offset, mut bytes, mut is_signed) = (None, None, None, false);
    for part in line.split(';') {
        match part.trim().split_once(':') {
            Some(("field", text)) => declared = Some(text.trim()),
            Some(("offset", number)) => offset = number.parse().ok(),
            Some(("size", number)) => bytes = number.parse().ok(),
            Some(("signed", number)) => is_signed = number == "1",
            _ => (),
        }
    }
    let (declared, offset, bytes) = (declared?, offset?, bytes?);
    let (declared, length) = match declared.strip_suffix(']') {
        Some(array) => {
            let (declared, length) = array.rsplit_once('[')?;
            (declared.trim(), Some(length))
        }
        None => (declared, None),
    };
    // `__data_loc char[] name`: the type has the brackets, the name has none.
    let at = declared.rfind([' ', '*', ']']).map_or(0, |at| at + 1);
    let (ty, name) = (declared[..at].trim(), &declared[at..]);
    let mut field = FormatField {
        name: name.into(),
        ty: ty.into(),
        offset,
        bytes,
        is_signed,
        kind: FieldKind::Other,
    };
    field.kind = kind(&field, length);
    (!name.is_empty()).then_some(field)
}

fn kind(field: &FormatField, length: Option<&str>) -> FieldKind {
    let FormatField { ty, bytes, .. } = field;
    let (located, is_relative) = match (
        ty.strip_prefix("__data_loc "),
        ty.strip_prefix("__rel_loc "),
    ) {
        (Some(ty), _) => (Some(ty), false),
        (_, ty) => (ty, true),
    };
    if let Some(ty) = located {
        return match ty.trim_end_matches("[]").trim() {
            "char" if *bytes == 4 => FieldKind::LocatedText { is_relative },
            _ => FieldKind::Other,
        };
    }
    let is_number = |bytes: usize| [1, 2, 4, 8].contains(&bytes);
    let is_aligned = |bytes: usize| is_number(bytes) && field.offset.is_multiple_of(bytes);
    match length {
        Some(_) if ty == "char" => FieldKind::Text,
        Some(length) => match length.parse::<usize>() {
            Ok(length) if length > 0 && bytes.is_multiple_of(length) => match bytes / length {
                one if is_aligned(one) => FieldKind::Numbers(length),
                _ => FieldKind::Other,
            },
            _ => FieldKind::Other,
        },
        None if ty.replace("const", "").replace(' ', "") == "char*" && *bytes == 8 => {
            FieldKind::TextAddress
        }
        None if is_aligned(*bytes) => FieldKind::Number,
        None => FieldKind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: &str = "name: example\nID: 372\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
        \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
        \tfield:char prev_comm[16];\toffset:8;\tsize:16;\tsigned:0;\n\
        \tfield:pid_t prev_pid;\toffset:24;\tsize:4;\tsigned:1;\n\
        \tfield:__data_loc char[] cmd;\toffset:28;\tsize:4;\tsigned:0;\n\
        \tfield:__rel_loc char[] tail;\toffset:32;\tsize:4;\tsigned:0;\n\
        \tfield:const char * filename;\toffset:40;\tsize:8;\tsigned:0;\n\
        \tfield:unsigned long args[6];\toffset:48;\tsize:48;\tsigned:0;\n\
        \tfield:struct in6_addr address;\toffset:96;\tsize:16;\tsigned:0;\n\
        \tfield:void *block;\toffset:112;\tsize:8;\tsigned:0;\n\n\
        print fmt: \"field: %s\", REC->cmd\n";

    #[test]
    fn fields_have_names_types_and_kinds() {
        let fields = parse(FORMAT);
        let all: Vec<_> = fields
            .iter()
            .map(|f| (&*f.name, &*f.ty, f.offset, f.kind))
            .collect();
        let located = |is_relative| FieldKind::LocatedText { is_relative };
        let expected = [
            ("prev_comm", "char", 8, FieldKind::Text),
            ("prev_pid", "pid_t", 24, FieldKind::Number),
            ("cmd", "__data_loc char[]", 28, located(false)),
            ("tail", "__rel_loc char[]", 32, located(true)),
            ("filename", "const char *", 40, FieldKind::TextAddress),
            ("args", "unsigned long", 48, FieldKind::Numbers(6)),
            ("address", "struct in6_addr", 96, FieldKind::Other),
            ("block", "void *", 112, FieldKind::Number),
        ];
        assert_eq!(all, expected);
        assert!(fields[1].is_signed && !fields[5].is_signed);
    }

    /// Every tracepoint of this host has a format whose lines are all understood.
    #[test]
    fn formats_of_this_host_are_read() {
        let Ok(all) = tracepoints() else {
            eprintln!("skipped: only root can read tracefs");
            return;
        };
        for (category, name) in all {
            let folder = tracefs().expect("it was read").join(&category).join(&name);
            let text = fs::read_to_string(folder.join("format")).expect("a format");
            let lines = text
                .lines()
                .filter(|line| line.trim().starts_with("field:"));
            let common = lines
                .clone()
                .filter(|line| line.contains(" common_"))
                .count();
            let fields = parse(&text);
            let nameless = fields.iter().find(|f| f.name.contains([' ', '[', '*']));
            assert_eq!(nameless, None, "{category}:{name}");
            assert_eq!(fields.len() + common, lines.count(), "{category}:{name}");
        }
    }
}
