//! [`Choices`]: decisions drawn from a list of numbers, so that a smaller list makes a simpler
//! query.

/// A list of numbers that determine decisions; when it is used up every decision is the first,
/// simplest one.
pub struct Choices<'a> {
    numbers: &'a [u32],
}

impl Choices<'_> {
    /// Decisions from these numbers.
    pub fn new(numbers: &[u32]) -> Choices<'_> {
        Choices { numbers }
    }

    /// One of `0..limit`; 0 should be the simplest.
    pub fn pick(&mut self, limit: usize) -> usize {
        match self.numbers.split_first() {
            Some((first, rest)) => {
                self.numbers = rest;
                *first as usize % limit
            }
            None => 0,
        }
    }

    /// One of these; the first should be the simplest.
    pub fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.pick(of.len())]
    }

    /// True once in `n` times.
    pub fn once_in(&mut self, n: usize) -> bool {
        self.pick(n) == n - 1
    }

    /// True as long as there are numbers left.
    pub fn any_left(&self) -> bool {
        !self.numbers.is_empty()
    }
}
