//! The words of a golden case's lines: values between spaces, texts in double quotes, tallies in
//! braces.

use weir_model::{Type, Value};

/// A word of an input or output line.
#[derive(Debug)]
pub struct Word {
    /// Its text, without quotes.
    pub text: String,
    /// Whether it stood in quotes.
    pub quoted: bool,
}

impl Word {
    /// Its value in a column of this type.
    ///
    /// # Errors
    /// When it is not one.
    pub fn value(&self, ty: Type) -> Result<Value, String> {
        if self.text == "NULL" && !self.quoted {
            return Ok(Value::Null);
        }
        let wrong = |_| format!("{} is no {ty}", self.text);
        Ok(match ty {
            Type::Int | Type::Time => Value::Int(self.text.parse().map_err(|_| wrong(()))?),
            Type::Float => Value::Float(self.text.parse().map_err(|_| wrong(()))?),
            Type::Bool => Value::Bool(self.text.parse().map_err(|_| wrong(()))?),
            // A tally or bytes are compared with the text that they print as.
            Type::Text | Type::Tally | Type::Partial => Value::text(&self.text),
        })
    }
}

/// The words of a line.
///
/// # Errors
/// When a quote is not closed.
pub fn words(line: &str) -> Result<Vec<Word>, String> {
    let mut words = Vec::new();
    let mut rest = line.trim_start();
    while !rest.is_empty() {
        let quoted = rest.starts_with('"');
        let (text, length) = if quoted {
            quoted_text(rest)?
        } else {
            let close = if rest.starts_with('{') { '}' } else { ' ' };
            let length = rest
                .find(close)
                .map_or(rest.len(), |at| at + usize::from(close == '}'));
            (rest[..length].to_string(), length)
        };
        words.push(Word { text, quoted });
        rest = rest[length..].trim_start();
    }
    Ok(words)
}

/// The text between the quotes at the start of `rest`, with Rust's escapes, and its length in
/// bytes.
fn quoted_text(rest: &str) -> Result<(String, usize), String> {
    let mut text = String::new();
    let mut chars = rest.char_indices().skip(1);
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Ok((text, at + 1)),
            '\\' => match chars.next() {
                Some((_, 'n')) => text.push('\n'),
                Some((_, 't')) => text.push('\t'),
                Some((_, c)) => text.push(c),
                None => break,
            },
            c => text.push(c),
        }
    }
    Err("a quote is not closed".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::changes::write_value;

    #[test]
    fn a_printed_value_parses_to_itself() {
        for text in ["a", "", "two words", "NULL", "12", "a\"b\\c", "-", "{"] {
            let value = Value::text(text);
            let words = words(&write_value(&value)).unwrap();
            assert_eq!(words.len(), 1, "{text:?}");
            assert_eq!(words[0].value(Type::Text), Ok(value));
        }
    }
}
