//! [`Names`]: the symbols of the names in a file, without a look-up in the table of the process for
//! each record.

use weir_model::Symbol;

use super::record::name;

/// Number of names that are remembered. A power of two.
const NAMES: usize = 32;

/// The names that occurred last in one field. Records that follow each other name few disks.
pub struct Names {
    known: [(&'static str, Symbol); NAMES],
}

impl Default for Names {
    fn default() -> Names {
        // That of the empty text.
        let known = Symbol::default();
        Names {
            known: [(known.as_str(), known); NAMES],
        }
    }
}

impl Names {
    /// The symbol of a name.
    ///
    /// # Errors
    /// As [`name`].
    pub fn symbol(&mut self, text: &str) -> Result<Symbol, String> {
        // Names of disks differ in their length or in their last character.
        let last = text.bytes().last().map_or(0, usize::from);
        let (known, symbol) = &mut self.known[(last ^ (text.len() << 2)) % NAMES];
        if *known != text {
            *symbol = name(text)?;
            *known = symbol.as_str();
        }
        Ok(*symbol)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_the_symbols_of_the_process() {
        let mut names = Names::default();
        for text in ["0", "", "src2_0", "P", "0", "p", "src2_0"] {
            assert_eq!(names.symbol(text), Ok(Symbol::new(text)));
        }
    }
}
