//! A pattern as an automaton: which positions can follow each position, in the order of preference.

use crate::plan::row_match::{RowMatch, RowPattern};

/// What can follow a row of a match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// A row at this position.
    Position(u32),
    /// Only rows that are not of the absent variable, until the end of WITHIN.
    Absence,
    /// Nothing: the match is complete.
    Accept,
}

/// The positions of a pattern.
#[derive(Debug)]
pub(super) struct Automaton {
    /// The variable of each position.
    pub variables: Vec<usize>,
    /// How a match begins.
    pub first: Vec<Target>,
    /// What follows the row at each position.
    pub follow: Vec<Vec<Target>>,
}

/// A step of the pattern as a program.
#[derive(Clone, Copy)]
enum Step {
    /// Reads a row at this position, then continues at the next step.
    Read(u32),
    /// Continues at the first of these or, second, at the other one.
    Split(usize, usize),
    Jump(usize),
    End,
}

impl Automaton {
    /// The automaton of a pattern.
    pub fn new(by: &RowMatch) -> Automaton {
        let mut program = Program::default();
        program.append(&by.pattern);
        program.steps.push(Step::End);
        let end = match by.absent {
            Some(_) => Target::Absence,
            None => Target::Accept,
        };
        let reads = program.steps.iter().enumerate();
        let reads = reads.filter_map(|(at, step)| matches!(step, Step::Read(_)).then_some(at));
        let follow = reads.map(|at| program.closure(at + 1, end)).collect();
        Automaton {
            first: program.closure(0, end),
            follow,
            variables: program.variables,
        }
    }
}

#[derive(Default)]
struct Program {
    steps: Vec<Step>,
    variables: Vec<usize>,
}

impl Program {
    fn append(&mut self, pattern: &RowPattern) {
        match pattern {
            RowPattern::Variable(variable) => {
                self.steps.push(Step::Read(self.variables.len() as u32));
                self.variables.push(*variable);
            }
            RowPattern::Sequence(terms) => terms.iter().for_each(|term| self.append(term)),
            RowPattern::Alternatives(terms) => self.alternatives(terms),
            RowPattern::Repeated {
                term,
                min,
                max,
                reluctant,
            } => {
                (0..*min).for_each(|_| self.append(term));
                match max {
                    None => self.any_times(term, *reluctant),
                    Some(max) => self.at_most(term, max - min, *reluctant),
                }
            }
        }
    }

    fn alternatives(&mut self, terms: &[RowPattern]) {
        let mut ends = Vec::new();
        for (i, term) in terms.iter().enumerate() {
            if i + 1 == terms.len() {
                self.append(term);
                break;
            }
            let split = self.reserve();
            self.append(term);
            ends.push(self.reserve());
            self.steps[split] = Step::Split(split + 1, self.steps.len());
        }
        let end = self.steps.len();
        ends.iter().for_each(|at| self.steps[*at] = Step::Jump(end));
    }

    fn any_times(&mut self, term: &RowPattern, reluctant: bool) {
        let split = self.reserve();
        self.append(term);
        self.steps.push(Step::Jump(split));
        self.steps[split] = self.optional(split, reluctant);
    }

    fn at_most(&mut self, term: &RowPattern, times: u32, reluctant: bool) {
        let splits: Vec<usize> = (0..times)
            .map(|_| {
                let split = self.reserve();
                self.append(term);
                split
            })
            .collect();
        for split in splits {
            self.steps[split] = self.optional(split, reluctant);
        }
    }

    /// Either the step after `split` or the end of the program so far.
    fn optional(&self, split: usize, reluctant: bool) -> Step {
        let end = self.steps.len();
        match reluctant {
            true => Step::Split(end, split + 1),
            false => Step::Split(split + 1, end),
        }
    }

    fn reserve(&mut self) -> usize {
        self.steps.push(Step::End);
        self.steps.len() - 1
    }

    /// What can be read at a step or is its end, in the order of preference, each once.
    fn closure(&self, from: usize, end: Target) -> Vec<Target> {
        let mut targets = Vec::new();
        let mut seen = vec![false; self.steps.len()];
        let mut open = vec![from];
        while let Some(at) = open.pop() {
            if std::mem::replace(&mut seen[at], true) {
                continue;
            }
            match self.steps[at] {
                Step::Read(position) => targets.push(Target::Position(position)),
                Step::Split(one, other) => open.extend([other, one]),
                Step::Jump(to) => open.push(to),
                Step::End => targets.push(end),
            }
        }
        targets
    }
}
