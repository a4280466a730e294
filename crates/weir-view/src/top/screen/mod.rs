//! The screen: drawn from the state, and displayed on the terminal.

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
