//! Random patterns on random rows: the operator, which advances an automaton, agrees at each
//! instant with the oracle, which tries all ways to match one after the other.

use proptest::prelude::*;

use super::choices::Choices;
use super::grammar::Grammar;
use super::{Query, agree, config, data, engine, listing, names, numbers};
use crate::support::feed::{self, Random};

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_random_pattern_has_the_matches_of_the_oracle(
        query in numbers(10..90),
        data in numbers(20..260),
        seed in any::<u64>(),
    ) {
        let mut choices = Choices::new(&query);
        let table = Grammar::new(&mut choices, &data::VOCABULARY).row_match("m").text;
        let query = Query::compile(&format!("SELECT * FROM {table}"));
        let feed = data::feed(&mut Choices::new(&data));
        let history = feed::history(&feed, &names(), &query.unoptimized);
        let expected = query.expected(&history);
        let mut random = Random::new(seed);
        for actions in [feed::whole(&feed, 3), feed::cut(&feed, 3, &mut random)] {
            let mut run = engine(&mut random);
            run.begin(history.begin);
            let id = run.add(&query.plan);
            run.act(&actions);
            run.finish();
            let result = agree(&expected, run.query(id));
            prop_assert!(result.is_ok(), "{}\n{}{}", query.text, result.unwrap_err(), listing(&feed));
        }
    }
}
