//! Functions of texts, bits and dates, by their definitions.

use regex::RegexBuilder;
use weir_model::Value;
use weir_query::function::ScalarCall;

use super::calendar;

/// The value of a call for these arguments, none of them NULL; `None` for another function.
pub fn call(call: &ScalarCall, args: &[Value]) -> Option<Value> {
    let name = call.function.doc().name;
    let text = |i: usize| args.get(i).map_or(String::new(), Value::to_string);
    let int = |i: usize| match args.get(i) {
        Some(Value::Int(x)) => *x,
        _ => 0,
    };
    let chars: Vec<char> = text(0).chars().collect();
    let of = |chars: &[char]| Value::text(&chars.iter().collect::<String>());
    Some(match name {
        "left" | "right" => {
            let (len, n) = (chars.len() as i64, int(1));
            let kept = if n < 0 { len.saturating_add(n) } else { n };
            let kept = kept.clamp(0, len) as usize;
            match name {
                "left" => of(&chars[..kept]),
                _ => of(&chars[chars.len() - kept..]),
            }
        }
        "trim" | "ltrim" | "rtrim" => {
            let among = if args.len() > 1 { text(1) } else { " ".into() };
            let (mut from, mut end) = (0, chars.len());
            while name != "rtrim" && from < end && among.contains(chars[from]) {
                from += 1;
            }
            while name != "ltrim" && from < end && among.contains(chars[end - 1]) {
                end -= 1;
            }
            of(&chars[from..end])
        }
        "lpad" | "rpad" => {
            let fill = if args.len() > 2 { text(2) } else { " ".into() };
            let (length, fill) = (int(1).max(0) as usize, fill.chars().collect::<Vec<_>>());
            let kept = chars[..chars.len().min(length)].to_vec();
            let missing = if fill.is_empty() {
                0
            } else {
                length - kept.len()
            };
            let filled: Vec<char> = (0..missing).map(|i| fill[i % fill.len()]).collect();
            match name {
                "lpad" => of(&[filled, kept].concat()),
                _ => of(&[kept, filled].concat()),
            }
        }
        "position" => {
            let whole: Vec<char> = text(1).chars().collect();
            let is_at = |at: &usize| whole[*at..].starts_with(&chars);
            let at = (0..=whole.len()).find(is_at);
            Value::Int(at.map_or(0, |at| at as i64 + 1))
        }
        "split_part" => {
            let (separator, n) = (text(1), int(2));
            let mut parts: Vec<String> = match separator.as_str() {
                "" => vec![text(0)],
                separator => text(0).split(separator).map(str::to_owned).collect(),
            };
            if n < 0 {
                parts.reverse();
            }
            let place = usize::try_from(n.unsigned_abs()).unwrap_or(usize::MAX);
            let part = place.checked_sub(1).and_then(|place| parts.get(place));
            Value::text(part.map_or("", String::as_str))
        }
        "regexp_matches" => Value::Bool(regex(&text(1), &text(2)).is_match(&text(0))),
        "regexp_replace" => {
            // The crate writes groups as `${1}` where CQL writes `\1`.
            let mut by = text(2).replace('$', "$$");
            for group in 0..10 {
                by = by.replace(&format!("\\{group}"), &format!("${{{group}}}"));
            }
            let limit = usize::from(!text(3).contains('g'));
            let regex = regex(&text(1), &text(3));
            Value::text(&regex.replacen(&text(0), limit, by))
        }
        "bit_and" => Value::Int(int(0) & int(1)),
        "bit_or" => Value::Int(int(0) | int(1)),
        "bit_xor" => Value::Int(int(0) ^ int(1)),
        "shift_left" | "shift_right" if int(1) < 0 => Value::Null,
        "shift_left" => Value::Int((0..int(1).min(64)).fold(int(0), |x, _| x.wrapping_add(x))),
        "shift_right" => Value::Int((0..int(1).min(64)).fold(int(0), |x, _| x.div_euclid(2))),
        "date_part" => Value::Int(part(&text(0), int(1))),
        "date_trunc" => start(&text(0), int(1)),
        _ => return None,
    })
}

/// Whether two values differ, where NULL equals NULL.
pub fn differ(call: &ScalarCall, args: &[Value]) -> Value {
    let scaled = |i: usize| match &args[i] {
        Value::Int(x) => Some(*x as f64 * call.args[i].unit().scale() as f64),
        Value::Float(x) => Some(*x * call.args[i].unit().scale() as f64),
        _ => None,
    };
    Value::Bool(match (scaled(0), scaled(1)) {
        (Some(x), Some(y)) => x != y,
        _ => args[0] != args[1],
    })
}

fn regex(pattern: &str, flags: &str) -> regex::Regex {
    let mut builder = RegexBuilder::new(pattern);
    builder.case_insensitive(flags.contains('i'));
    builder.build().expect("the checker compiled it")
}

/// A part of a time, read from its text.
fn part(name: &str, ts: i64) -> i64 {
    let text = calendar::write(ts);
    let at = |from: usize, end: usize| text[from..end].parse::<i64>().expect("digits");
    let day = |text: &str| calendar::read(text).expect("a date") / 86_400_000_000_000;
    let today = day(&text[..10]);
    match name {
        "year" => at(0, 4),
        "quarter" => [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4][at(5, 7) as usize - 1],
        "month" => at(5, 7),
        "day" => at(8, 10),
        "hour" => at(11, 13),
        "minute" => at(14, 16),
        "second" => at(17, 19),
        "millisecond" => at(20, 23),
        "microsecond" => at(20, 26),
        "nanosecond" => at(20, 29),
        "epoch" => ts.div_euclid(1_000_000_000),
        // 1970-01-04 was a Sunday.
        "dow" => (today - 3).rem_euclid(7),
        "doy" => today - day(&format!("{}-01-01", &text[..4])) + 1,
        "week" => {
            let thursday = today - (today - 4).rem_euclid(7) + 3;
            let year = &calendar::write(thursday * 86_400_000_000_000)[..4];
            (thursday - day(&format!("{year}-01-01"))) / 7 + 1
        }
        other => panic!("{other} is a part of a date"),
    }
}

/// The start of the part of a time, from its text.
fn start(name: &str, ts: i64) -> Value {
    let text = calendar::write(ts);
    let kept = match name {
        "year" => format!("{}-01-01", &text[..4]),
        "month" => format!("{}-01", &text[..7]),
        "day" => text[..10].to_owned(),
        "hour" => format!("{}:00", &text[..13]),
        "minute" => text[..16].to_owned(),
        "second" => text[..19].to_owned(),
        "millisecond" => text[..23].to_owned(),
        "microsecond" => text[..26].to_owned(),
        "week" => {
            let back = (part("dow", ts) + 6) % 7;
            calendar::write(ts - back * 86_400_000_000_000)[..10].to_owned()
        }
        _ => format!("{}-{:02}-01", &text[..4], part("quarter", ts) * 3 - 2),
    };
    calendar::read(&kept).map_or(Value::Null, Value::Int)
}
