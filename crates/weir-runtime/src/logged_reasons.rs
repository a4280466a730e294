//! [`LoggedReasons`]: the reasons for a missing connection that were logged. With several addresses
//! the reasons alternate, and each is logged once.

/// Reasons that are stored; the oldest ones are logged again.
const REASONS_MAX: usize = 16;

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct LoggedReasons(Vec<String>);

impl LoggedReasons {
    /// Adds a reason; false if it was logged already.
    pub fn add(&mut self, why: &str) -> bool {
        if self.0.iter().any(|logged| logged == why) {
            return false;
        }
        if self.0.len() >= REASONS_MAX {
            self.0.remove(0);
        }
        self.0.push(why.to_owned());
        true
    }

    /// There is a connection: reasons are logged again.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}
