//! [`Text`]: a piece of a query as it is written in CQL and in DuckDB's SQL.

/// The same expression, condition or query in both dialects.
#[derive(Clone, Debug, Default)]
pub struct Text {
    pub cql: String,
    pub duckdb: String,
}

impl Text {
    /// What both dialects write in the same way.
    pub fn same(text: impl Into<String>) -> Text {
        let cql = text.into();
        Text {
            duckdb: cql.clone(),
            cql,
        }
    }

    /// What they write differently.
    pub fn differing(cql: impl Into<String>, duckdb: impl Into<String>) -> Text {
        Text {
            cql: cql.into(),
            duckdb: duckdb.into(),
        }
    }

    /// `cql` and `duckdb` with `parts` in place of `{0}`, `{1}` and so on.
    pub fn filled(cql: &str, duckdb: &str, parts: &[&Text]) -> Text {
        let fill = |template: &str, part: fn(&Text) -> &str| {
            let mut text = template.to_owned();
            for (number, value) in parts.iter().enumerate().rev() {
                // A value may contain braces: they are of a later number, already replaced.
                text = text.replace(&format!("{{{number}}}"), part(value));
            }
            text
        };
        Text::differing(fill(cql, |p| &p.cql), fill(duckdb, |p| &p.duckdb))
    }

    /// The same template in both dialects.
    pub fn of(template: &str, parts: &[&Text]) -> Text {
        Text::filled(template, template, parts)
    }

    /// The texts one after another.
    pub fn joined(texts: &[Text], separator: &str) -> Text {
        let all = |part: fn(&Text) -> &str| {
            let parts: Vec<&str> = texts.iter().map(part).collect();
            parts.join(separator)
        };
        Text::differing(all(|t| &t.cql), all(|t| &t.duckdb))
    }

    /// Adds a text at the end.
    pub fn push(&mut self, text: &Text) {
        self.cql += &text.cql;
        self.duckdb += &text.duckdb;
    }

    /// This text and another one.
    pub fn and(mut self, text: &Text) -> Text {
        self.push(text);
        self
    }
}
