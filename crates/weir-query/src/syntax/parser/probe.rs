//! `CREATE STREAM name AS PROBE 'probe' (fields) TO 'probe' (fields) ON key`.

use weir_model::probe::TEXT_BYTES_MAX;
use weir_model::{ProbeField, ProbeScope, ProbeType, Unit};

use super::*;

/// The units of a field.
const UNITS: [Unit; 4] = [
    Unit::Nanoseconds,
    Unit::Microseconds,
    Unit::Bytes,
    Unit::Sectors,
];

impl Parser<'_> {
    /// What follows `CREATE STREAM`.
    pub(super) fn stream_definition(&mut self) -> Result<StreamDefinition> {
        let name = self.ident("a name for the stream")?;
        self.expect_word("as")?;
        self.expect_word("probe")?;
        let (probe, fields) = self.probe_with_fields()?;
        let end = match self.eat_word("to") {
            true => Some(self.probe_end()?),
            false => None,
        };
        let scope = self.probe_scope()?;
        let hits_max = match self.eat_word("limit") {
            true => Some(self.count("a number of hits per second")?),
            false => None,
        };
        let cpu_percent_max = match self.eat_word("cpu") {
            true => Some(self.percent()?),
            false => None,
        };
        Ok(StreamDefinition {
            name,
            probe,
            fields,
            end,
            scope,
            hits_max,
            cpu_percent_max,
        })
    }

    /// `[PID 7] [CGROUP '/web']`
    fn probe_scope(&mut self) -> Result<ProbeScope> {
        let mut scope = ProbeScope::default();
        if self.eat_word("pid") {
            let pid = self.count("the number of a process")?;
            match u32::try_from(pid.value) {
                Ok(number @ 1..) => scope.pid = Some(number),
                _ => {
                    let message = "the number of a process is 1 to 4294967295";
                    return Err(self.fail(codes::BAD_NUMBER.at(pid.span, message)));
                }
            }
        }
        if self.eat_word("cgroup") {
            let what = "the path of a cgroup as a text, such as '/system.slice'";
            let span = self.expect(Token::Text, what)?;
            scope.cgroup = Some(unquote(self.text_of(span)));
        }
        Ok(scope)
    }

    /// `5 %`: 1 to 100.
    fn percent(&mut self) -> Result<Spanned<u8>> {
        let count = self.count("a share of a processor, such as `5 %`")?;
        self.expect(Token::Percent, "`%`")?;
        match u8::try_from(count.value) {
            Ok(percent @ 1..=100) => Ok(Spanned::new(percent, count.span)),
            _ => {
                let message = "the share of a processor is 1 % to 100 %";
                Err(self.fail(codes::BAD_NUMBER.at(count.span, message)))
            }
        }
    }

    /// `'probe' [(field, ..)]`
    fn probe_with_fields(&mut self) -> Result<(Spanned<String>, Vec<Spanned<ProbeField>>)> {
        let what = "the probe as a text, such as 'tp:sched:sched_switch'";
        let span = self.expect(Token::Text, what)?;
        let probe = Spanned::new(unquote(self.text_of(span)), span);
        let mut fields = Vec::new();
        if self.eat(Token::LeftParen) {
            loop {
                fields.push(self.probe_field()?);
                if !self.eat(Token::Comma) {
                    break;
                }
            }
            self.expect(Token::RightParen, "`,` or `)`")?;
        }
        Ok((probe, fields))
    }

    /// What follows `TO`.
    fn probe_end(&mut self) -> Result<EndDefinition> {
        let (probe, fields) = self.probe_with_fields()?;
        let mut keys = Vec::new();
        if self.eat_word("on") {
            loop {
                let begin = self.field_path()?;
                let end = match self.eat(Token::Equal) {
                    true => self.field_path()?,
                    false => begin.clone(),
                };
                keys.push((begin, end));
                if !self.eat_word("and") {
                    break;
                }
            }
        }
        Ok(EndDefinition {
            probe,
            fields,
            keys,
        })
    }

    /// `rq.__data_len [type] [AS name] [UNIT unit]`
    fn probe_field(&mut self) -> Result<Spanned<ProbeField>> {
        let start = self.span();
        let mut field = ProbeField::new(&self.field_path()?);
        if self.word().is_some() && !self.is_any_word(&["as", "unit"]) {
            field.ty = Some(self.field_type()?);
        }
        if self.eat_word("as") {
            field.name = Some(self.ident("a name for the column")?.value);
        }
        if self.eat_word("unit") {
            field.unit = self.field_unit()?;
        }
        Ok(Spanned::new(field, start.to(self.before())))
    }

    /// `rq.q.disk`, `args[1]`. Names of fields may be keywords.
    fn field_path(&mut self) -> Result<String> {
        let mut path = String::new();
        loop {
            let Some(word) = self.word() else {
                return Err(self.unexpected("the name of a field"));
            };
            path.push_str(word);
            self.at += 1;
            if self.eat(Token::LeftBracket) {
                let index = self.count("an index")?.value;
                self.expect(Token::RightBracket, "`]`")?;
                path.push_str(&format!("[{index}]"));
            }
            if !self.eat(Token::Dot) {
                return Ok(path);
            }
            path.push('.');
        }
    }

    fn field_type(&mut self) -> Result<ProbeType> {
        let (span, word) = (self.span(), self.word().unwrap_or_default());
        let Some(ty) = ProbeType::named(word) else {
            let message = format!("unknown type `{word}`");
            let help = match nearest(word, ProbeType::names()) {
                Some(name) => format!("did you mean `{name}`?"),
                None => "types are u8 to u64, s8 to s64, text and vm".into(),
            };
            return Err(self.fail(codes::UNKNOWN_TYPE.at(span, message).help(help)));
        };
        self.at += 1;
        if !matches!(ty, ProbeType::Text { .. }) || !self.eat(Token::LeftParen) {
            return Ok(ty);
        }
        let bytes = self.count("a number of bytes")?;
        self.expect(Token::RightParen, "`)`")?;
        if !(1..=TEXT_BYTES_MAX).contains(&bytes.value) {
            let message = format!("a text has 1 to {TEXT_BYTES_MAX} bytes");
            return Err(self.fail(codes::BAD_NUMBER.at(bytes.span, message)));
        }
        Ok(ProbeType::Text { bytes: bytes.value })
    }

    fn field_unit(&mut self) -> Result<Unit> {
        let Some(word) = self.word() else {
            return Err(self.unexpected("a unit"));
        };
        let span = self.span();
        let measure = self.measure(word)?;
        let same =
            |unit: &Unit| unit.dimension() == measure.dimension && unit.scale() == measure.scale;
        UNITS.into_iter().find(same).ok_or_else(|| {
            let message = format!("`{word}` is not a unit of a field");
            let help = "fields are in ns, us, B or sectors";
            self.fail(codes::UNKNOWN_UNIT.at(span, message).help(help))
        })
    }
}
