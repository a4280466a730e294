//! The screen: a picture drawn from the state, and the terminal that shows it.

mod bars;
mod draw;
mod help;
mod ink;
mod table;
mod terminal;
#[cfg(test)]
mod tests;

pub use terminal::{Screen, watch};
pub use weir_sink::plot::Ink;
