//! Statements on views and on what queries can use: CREATE VIEW, DROP VIEW, DESCRIBE, SHOW.

use super::*;

/// Words at the start of a query that DESCRIBE may have.
const QUERY_WORDS: &[&str] = &["select", "with", "istream", "dstream", "rstream"];

impl Parser<'_> {
    /// `[OR REPLACE] VIEW name (a, b) AS query`, after CREATE.
    pub(super) fn view_definition(&mut self) -> Result<ViewDefinition> {
        let or_replace = self.eat_word("or");
        if or_replace {
            self.expect_word("replace")?;
        }
        self.expect_word("view")?;
        let name = self.ident("a name for the view")?;
        let columns = self.column_names()?;
        self.expect_word("as")?;
        let query = self.query()?;
        Ok(ViewDefinition {
            or_replace,
            name,
            columns,
            query,
        })
    }

    /// A DROP VIEW, DESCRIBE or SHOW statement, if one starts here. Its keywords are not reserved.
    pub(super) fn library_statement(&mut self) -> Result<Option<Statement>> {
        let next = self.lexeme(1);
        let next_word = self.word_after(0);
        let is_name = next.token == Token::QuotedWord || next_word.is_some_and(|w| !is_reserved(w));
        let is_before = |words: &[&str]| {
            let same = |word: &str| words.iter().any(|w| w.eq_ignore_ascii_case(word));
            next_word.is_some_and(same)
        };
        let is_query = is_before(QUERY_WORDS) || next.token == Token::LeftParen;
        if is_name && self.eat_word("drop") {
            return self.drop_view().map(Some);
        }
        if (is_name || is_before(&["create"])) && self.eat_word("show") {
            return self.show().map(|found| Some(Statement::Inspect(found)));
        }
        if (is_name || is_query) && (self.eat_word("describe") || self.eat_word("desc")) {
            return self.describe().map(|found| Some(Statement::Inspect(found)));
        }
        Ok(None)
    }

    fn drop_view(&mut self) -> Result<Statement> {
        self.expect_word("view")?;
        let if_exists = self.is_word("if") && self.word_after(0).is_some();
        if if_exists {
            self.at += 1;
            self.expect_word("exists")?;
        }
        let name = self.ident("the name of a view")?;
        Ok(Statement::DropView(DropView { name, if_exists }))
    }

    fn describe(&mut self) -> Result<CatalogQuery> {
        if self.is_any_word(QUERY_WORDS) || self.is(Token::LeftParen) {
            let query = Box::new(self.query()?);
            return Ok(CatalogQuery::Describe { name: None, query });
        }
        let name = self.ident("a stream, relation, view or query")?;
        let named = Named {
            name: name.clone(),
            window: None,
            alias: None,
        };
        let query = Box::new(Query {
            views: Vec::new(),
            body: Spanned::new(BodyKind::Named(Box::new(named)), name.span),
            order_by: Vec::new(),
            limit: None,
            offset: None,
        });
        let name = Some(name);
        Ok(CatalogQuery::Describe { name, query })
    }

    fn show(&mut self) -> Result<CatalogQuery> {
        if self.eat_word("create") {
            self.expect_word("view")?;
            return self.ident("the name of a view").map(CatalogQuery::ShowView);
        }
        let found = CatalogList::WORDS
            .iter()
            .find(|(word, _)| self.is_word(word));
        let Some(&(word, what)) = found else {
            return Err(self.unexpected("STREAMS, VIEWS, FUNCTIONS, QUERIES or CREATE VIEW"));
        };
        self.expect_word(word)?;
        let like = match self.eat_word("like") {
            true => {
                let span = self.expect(Token::Text, "a pattern, such as 'IO%'")?;
                Some(Spanned::new(unquote(self.text_of(span)), span))
            }
            false => None,
        };
        Ok(CatalogQuery::Show { what, like })
    }
}
