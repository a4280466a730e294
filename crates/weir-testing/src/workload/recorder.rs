//! [`RecordProcess`]: a running `weir record`.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::run::run;

/// `weir record` as a child, which ends with this.
#[derive(Debug)]
pub struct RecordProcess {
    weir: Child,
}

/// How long it may take to start and to end.
const TIMEOUT: Duration = Duration::from_secs(30);

impl RecordProcess {
    /// Records with more `options`, such as `--device /dev/loop3`, to the file `out`. It is
    /// recording on return.
    pub fn start(weir: &Path, options: &[&str], out: &Path) -> Result<RecordProcess> {
        let mut command = Command::new(weir);
        command.arg("record").args(options).arg("-o").arg(out);
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", weir.display()))?;
        let mut recorder = RecordProcess { weir: child };
        // The file is created when the probes are attached.
        recorder.until(|_| Ok(out.exists().then_some(())))?;
        Ok(recorder)
    }

    /// Interrupts it, as Ctrl-C does: the file contains the events until now.
    pub fn stop(mut self) -> Result<()> {
        run("kill", &["-INT", &self.weir.id().to_string()])?;
        self.until(|weir| Ok(weir.try_wait()?))?;
        Ok(())
    }

    /// Polls until `look` returns a value. An unexpected exit is an error.
    fn until<T>(&mut self, mut look: impl FnMut(&mut Child) -> Result<Option<T>>) -> Result<T> {
        let started = Instant::now();
        loop {
            if let Some(seen) = look(&mut self.weir)? {
                return Ok(seen);
            }
            if let Some(status) = self.weir.try_wait()? {
                let mut output = String::new();
                let stderr = self.weir.stderr.take();
                stderr
                    .map(|mut e| e.read_to_string(&mut output))
                    .transpose()?;
                bail!("weir record ended with {status}: {}", output.trim());
            }
            if started.elapsed() > TIMEOUT {
                bail!("weir record does nothing for {} s", TIMEOUT.as_secs());
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for RecordProcess {
    fn drop(&mut self) {
        // It has ended, unless something failed.
        let _ = self.weir.kill();
        let _ = self.weir.wait();
    }
}
