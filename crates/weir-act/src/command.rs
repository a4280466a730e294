//! Programs that own limits, run with arguments and without a shell: `virsh` and `systemctl`.

use std::io::Read;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::ActError;

/// The longest run of a program.
const RUN_MAX: Duration = Duration::from_secs(10);

/// Maximum bytes of the output of a program.
const OUTPUT_BYTES_MAX: u64 = 64 << 10;

/// Runs a program with these arguments, and returns its standard output.
///
/// # Errors
/// When it cannot be started, does not end in time, or fails: with what it printed.
pub fn run(program: &str, args: &[String]) -> Result<String, ActError> {
    let failed = |why: String| ActError::Program {
        program: program.to_owned(),
        why,
    };
    let mut command = Command::new(program);
    command.args(args).env("LC_ALL", "C").stdin(Stdio::null());
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| failed(error.to_string()))?;
    let reader = |stream: Option<Box<dyn Read + Send>>| {
        thread::spawn(move || {
            let mut text = String::new();
            if let Some(stream) = stream {
                // What is no text, or too much, is left out.
                let _ = stream.take(OUTPUT_BYTES_MAX).read_to_string(&mut text);
            }
            text
        })
    };
    let out = reader(
        child
            .stdout
            .take()
            .map(|s| Box::new(s) as Box<dyn Read + Send>),
    );
    let err = reader(
        child
            .stderr
            .take()
            .map(|s| Box::new(s) as Box<dyn Read + Send>),
    );
    let end = Instant::now() + RUN_MAX;
    let status = loop {
        match child
            .try_wait()
            .map_err(|error| failed(error.to_string()))?
        {
            Some(status) => break status,
            None if Instant::now() >= end => {
                // It may have ended in between.
                let _ = child.kill();
                let _ = child.wait();
                return Err(failed(format!("it did not end within {RUN_MAX:?}")));
            }
            None => thread::sleep(Duration::from_millis(5)),
        }
    };
    let (out, err) = (
        out.join().unwrap_or_default(),
        err.join().unwrap_or_default(),
    );
    match status.success() {
        true => Ok(out),
        false => Err(failed(format!(
            "{status}: {}",
            err.trim().replace('\n', "; ")
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_fails_is_reported_with_what_it_printed() {
        assert_eq!(run("echo", &["a b".to_owned()]).unwrap(), "a b\n");
        let error = run("ls", &["/no/such/file".to_owned()]).unwrap_err();
        assert!(error.to_string().contains("/no/such/file"), "{error}");
        let error = run("/no/such/program", &[]).unwrap_err();
        assert!(error.to_string().contains("/no/such/program"), "{error}");
    }
}
