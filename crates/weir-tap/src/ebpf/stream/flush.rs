//! [`Flush`]: the program of a stream that emits what its other programs counted since the last
//! flush.

use libbpf_rs::{Object, ProgramInput};

use super::paths::Paths;
use crate::TapError;
use crate::ebpf::clock;
use crate::ebpf::object::refused;

/// The interval between two flushes.
const INTERVAL_NS: u64 = 100_000_000;

/// The program, and when it ran.
#[derive(Debug)]
pub struct Flush {
    program: &'static str,
    /// The start of the last run: all counts up to then have been emitted.
    started_ns: u64,
}

impl Flush {
    /// The flush by `program`; counting starts now.
    pub fn new(program: &'static str) -> Flush {
        Flush {
            program,
            started_ns: clock::monotonic_ns(),
        }
    }

    /// Runs the program if it is due, and reads the paths of what it emits. Returns the time up to
    /// which all counts have been emitted.
    ///
    /// # Errors
    /// If the kernel refuses to run the program.
    pub fn run(&mut self, object: &Object, paths: Option<&mut Paths>) -> Result<u64, TapError> {
        let now_ns = clock::monotonic_ns();
        if now_ns - self.started_ns >= INTERVAL_NS {
            self.emit(object)?;
            self.started_ns = now_ns;
            if let Some(paths) = paths {
                paths.read_new();
            }
        }
        Ok(self.started_ns)
    }

    /// Removes all counts, while the programs emit nothing; counting starts now.
    ///
    /// # Errors
    /// As [`Flush::run`].
    pub fn discard(&mut self, object: &Object) -> Result<(), TapError> {
        // The first run takes the counts, the second one ends what waits for a call, the third one
        // frees the cells.
        (0..3).try_for_each(|_| self.emit(object))?;
        self.started_ns = clock::monotonic_ns();
        Ok(())
    }

    /// Runs the program. Its events have the time of the previous run.
    fn emit(&self, object: &Object) -> Result<(), TapError> {
        let mut programs = object.progs_mut();
        let program = programs.find(|p| p.name() == self.program);
        let program = program.expect("the object has the program that flushes");
        let mut since_ns = self.started_ns.to_ne_bytes();
        let input = ProgramInput {
            context_in: Some(&mut since_ns),
            ..ProgramInput::default()
        };
        let ran = program.test_run(input);
        ran.map_err(|e| refused("to flush counts", &e))?;
        Ok(())
    }
}
