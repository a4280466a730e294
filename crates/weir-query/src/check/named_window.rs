//! WINDOW: names for the partition, order and frame of window functions.

use super::Checker;
use crate::diagnostic::{Diagnostic, codes};
use crate::syntax::ast::{RowWindow, WindowDefinition};

impl Checker<'_> {
    /// A window of OVER, with what the window has that it names.
    pub(super) fn resolved_window(&mut self, window: &RowWindow) -> Option<RowWindow> {
        let resolved = resolve(window, &self.windows);
        resolved.map_err(|found| self.diagnostics.push(found)).ok()
    }

    /// Checks the names of WINDOW, which are `windows` of a block from here on; the result is those
    /// of the block around it.
    pub(super) fn begin_windows(&mut self, windows: &[WindowDefinition]) -> Vec<WindowDefinition> {
        for (i, definition) in windows.iter().enumerate() {
            let name = &definition.name;
            if windows[..i].iter().any(|w| w.is_called(&name.value)) {
                let message = format!("the window `{}` is defined twice", name.value);
                let found = codes::WINDOW_FUNCTION.at(name.span, message);
                self.diagnostics.push(found);
            }
        }
        std::mem::replace(&mut self.windows, windows.to_vec())
    }
}

/// `window` on top of the one that it names among `defined`; a definition uses earlier ones only.
fn resolve(window: &RowWindow, defined: &[WindowDefinition]) -> Result<RowWindow, Diagnostic> {
    let Some(name) = &window.base else {
        return Ok(window.clone());
    };
    let Some(at) = defined.iter().position(|w| w.is_called(&name.value)) else {
        let message = format!("unknown window `{}`", name.value);
        let help = format!(
            "define it after FROM: `WINDOW {} AS (order by ts)`",
            name.value
        );
        return Err(codes::WINDOW_FUNCTION.at(name.span, message).help(help));
    };
    let base = resolve(&defined[at].window, &defined[..at])?;
    if window.is_bare {
        return Ok(base);
    }
    let refused = |what: &str, help: &str| {
        let message = format!("{what} of window `{}` cannot be changed", name.value);
        codes::WINDOW_FUNCTION.at(name.span, message).help(help)
    };
    if !window.partition.is_empty() {
        return Err(refused("PARTITION BY", "state it in WINDOW"));
    }
    if !window.order_by.is_empty() && !base.order_by.is_empty() {
        return Err(refused("ORDER BY", "state the order only once"));
    }
    if base.frame.is_some() {
        let help = format!("write `OVER {}` for it as it is", name.value);
        return Err(refused("the frame", &help));
    }
    let order_by = match base.order_by.is_empty() {
        true => window.order_by.clone(),
        false => base.order_by,
    };
    Ok(RowWindow {
        order_by,
        frame: window.frame.clone(),
        ..base
    })
}
