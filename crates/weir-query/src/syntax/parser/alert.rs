//! `CREATE ALERT name AS query WHEN .. UNTIL ..` and `EXPECT alert state ..`.

use super::*;

/// Words that begin a clause of CREATE ALERT, beside WHEN. They are not reserved elsewhere.
const ALERT_CLAUSES: &[&str] = &[
    "for",
    "until",
    "labels",
    "annotations",
    "act",
    "cooldown",
    "witness",
    "within",
];

impl Parser<'_> {
    /// Whether a clause of CREATE ALERT begins here, so that its word is not an alias or a unit.
    pub(super) fn begins_alert_clause(&self) -> bool {
        self.in_alert && self.is_any_word(ALERT_CLAUSES)
    }

    /// What follows `CREATE ALERT`.
    pub(super) fn alert_definition(&mut self) -> Result<AlertDefinition> {
        self.in_alert = true;
        let parsed = self.alert_clauses();
        self.in_alert = false;
        parsed
    }

    fn alert_clauses(&mut self) -> Result<AlertDefinition> {
        let name = self.ident("a name for the alert")?;
        self.expect_word("as")?;
        let query = self.query()?;
        let when = match self.eat_word("when") {
            true => Some(self.expr()?),
            false => None,
        };
        let hold = self.held_for()?;
        let until = match self.eat_word("until") {
            true => Some(self.until()?),
            false => None,
        };
        let labels = self.alert_items("labels")?;
        let annotations = self.alert_items("annotations")?;
        let act = match self.eat_word("act") {
            true => Some(self.act_clause()?),
            false => None,
        };
        if !self.is(Token::Semicolon) && !self.is(Token::End) {
            return Err(
                self.unexpected("WHEN, FOR, UNTIL, LABELS, ANNOTATIONS, ACT or `;`, in this order")
            );
        }
        Ok(AlertDefinition {
            name,
            query,
            when,
            hold,
            until,
            labels,
            annotations,
            act,
        })
    }

    /// What follows `ACT`.
    fn act_clause(&mut self) -> Result<ActClause> {
        // LIMIT is reserved, so that it is no name elsewhere.
        if !self.is(Token::Word) {
            return Err(self.unexpected("an action: LIMIT or WEIGHT"));
        }
        let span = self.span();
        let verb = Ident::new(self.text_of(span).to_lowercase(), span);
        self.at += 1;
        let items = self.item_list()?;
        self.expect_word("for")?;
        let hold = self.duration()?;
        let cooldown = match self.eat_word("cooldown") {
            true => Some(self.duration()?),
            false => None,
        };
        let witness = match self.eat_word("witness") {
            true => {
                let condition = self.expr()?;
                self.expect_word("within")?;
                Some((condition, self.duration()?))
            }
            false => None,
        };
        Ok(ActClause {
            verb,
            items,
            hold,
            cooldown,
            witness,
        })
    }

    /// `FOR 30 s`, or nothing.
    fn held_for(&mut self) -> Result<Option<Spanned<Duration>>> {
        match self.eat_word("for") {
            true => self.duration().map(Some),
            false => Ok(None),
        }
    }

    fn until(&mut self) -> Result<UntilClause> {
        let ends = self.begins_alert_clause() || self.is(Token::Semicolon) || self.is(Token::End);
        let condition = match ends {
            true => None,
            false => Some(self.expr()?),
        };
        let hold = self.held_for()?;
        if condition.is_none() && hold.is_none() {
            return Err(self.unexpected("a condition or FOR"));
        }
        Ok(UntilClause { condition, hold })
    }

    /// `LABELS vm, 'page' AS severity`, or nothing.
    fn alert_items(&mut self, clause: &str) -> Result<Vec<Spanned<Item>>> {
        match self.eat_word(clause) {
            true => self.item_list(),
            false => Ok(Vec::new()),
        }
    }

    /// Columns, or expressions with AS and a name.
    fn item_list(&mut self) -> Result<Vec<Spanned<Item>>> {
        let mut items = Vec::new();
        loop {
            let start = self.span();
            let item = self.item()?;
            items.push(Spanned::new(item, start.to(self.before())));
            if !self.eat(Token::Comma) {
                return Ok(items);
            }
        }
    }

    /// Whether EXPECT begins here; it is an ordinary word elsewhere.
    pub(super) fn begins_expectation(&self) -> bool {
        self.is_word("expect") && self.is_name(1)
    }

    /// Whether a word or a quoted name is so many tokens ahead.
    fn is_name(&self, ahead: usize) -> bool {
        matches!(self.lexeme(ahead).token, Token::Word | Token::QuotedWord)
    }

    /// What follows `EXPECT`.
    pub(super) fn expectation(&mut self) -> Result<Expectation> {
        let negated = self.is_word("no") && self.is_name(1) && {
            let after = self.word_after(1).unwrap_or_default();
            let is_clause = |word: &&str| word.eq_ignore_ascii_case(after);
            self.is_name(2) && !["at", "between", "where"].iter().any(is_clause)
        };
        self.at += usize::from(negated);
        let alert = self.ident("the name of an alert")?;
        let state = self.ident("a state: pending, firing, clear or unknown")?;
        let interval = if self.eat_word("at") {
            let at = self.duration()?;
            Some((at.clone(), at))
        } else if self.eat_word("between") {
            let from = self.duration()?;
            self.expect_word("and")?;
            Some((from, self.duration()?))
        } else {
            None
        };
        let mut labels = Vec::new();
        let mut more = self.eat_word("where");
        while more {
            let label = self.ident("the name of a label")?;
            self.expect(Token::Equal, "`=`")?;
            let span = self.expect(Token::Text, "a text, such as 'vm1'")?;
            labels.push((label, Spanned::new(unquote(self.text_of(span)), span)));
            more = self.eat_word("and");
        }
        Ok(Expectation {
            negated,
            alert,
            state,
            interval,
            labels,
        })
    }
}
