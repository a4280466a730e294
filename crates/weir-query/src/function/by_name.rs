//! Functions by their names: look-up, and serialisation as a name.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serializer};

use super::FunctionDoc;

/// A kind of functions with a list of all of them.
pub trait Listed: 'static {
    /// Every function of the kind, in the order of the reference.
    fn all() -> &'static [&'static Self];

    /// The description of one.
    fn doc(&self) -> &'static FunctionDoc;
}

/// The function called `name`, by its own name or an alias, without regard to case.
pub fn find<F: Listed + ?Sized>(name: &str) -> Option<&'static F> {
    let has_name = |d: &FunctionDoc| {
        d.name.eq_ignore_ascii_case(name) || d.aliases.iter().any(|a| a.eq_ignore_ascii_case(name))
    };
    F::all().iter().copied().find(|f| has_name(f.doc()))
}

pub fn serialize<F: Listed + ?Sized, S: Serializer>(
    function: &&'static F,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(function.doc().name)
}

pub fn deserialize<'de, F: Listed + ?Sized, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<&'static F, D::Error> {
    let name = String::deserialize(deserializer)?;
    find(&name).ok_or_else(|| D::Error::custom(format!("function `{name}` is unknown here")))
}
