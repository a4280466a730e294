//! [`Output`]: a sequence of reports, as text or as one JSON document.

use weir_sink::iostat::{self, HostTitle, IostatReport, Style};
use weir_sink::{SinkError, Target};

/// The destination of reports.
pub struct Output {
    target: Target,
    /// The header, until it is written.
    heading: Option<String>,
    style: Style,
    json: bool,
    written: usize,
}

impl Output {
    /// Starts with the host, which is written before the first report: without a report, only the
    /// error is printed.
    pub fn begin(target: Target, style: Style, json: bool, host: &HostTitle, at_ns: i64) -> Output {
        Output {
            target,
            heading: Some(match json {
                true => iostat::json_heading(host, at_ns),
                false => iostat::heading(host, at_ns),
            }),
            style,
            json,
            written: 0,
        }
    }

    fn put_heading(&mut self) -> Result<(), SinkError> {
        match self.heading.take() {
            Some(heading) => self.target.put(&heading),
            None => Ok(()),
        }
    }

    /// Writes a report.
    ///
    /// # Errors
    /// When the target fails.
    pub fn write(&mut self, report: &IostatReport<'_>) -> Result<(), SinkError> {
        self.put_heading()?;
        if self.json {
            if self.written > 0 {
                self.target.put(iostat::JSON_BETWEEN)?;
            }
            self.target.put(&iostat::json(report, &self.style))?;
        } else {
            self.target.put(&iostat::text(report, &self.style))?;
        }
        self.written += 1;
        self.target.flush()
    }

    /// In sysstat's output an omitted first report still has its line feed.
    ///
    /// # Errors
    /// When the target fails.
    pub fn omit(&mut self) -> Result<(), SinkError> {
        self.put_heading()?;
        self.target.put("\n")
    }

    /// The number of reports written.
    pub fn written(&self) -> usize {
        self.written
    }

    /// Completes the document.
    ///
    /// # Errors
    /// When the target fails.
    pub fn finish(&mut self) -> Result<(), SinkError> {
        self.put_heading()?;
        if self.json {
            self.target.put(iostat::JSON_END)?;
        }
        self.target.flush()
    }
}

/// This host, with its processors as listed in /proc/stat.
pub fn host(processors: usize) -> HostTitle {
    let kernel = |name: &str| {
        let text = std::fs::read_to_string(format!("/proc/sys/kernel/{name}"));
        text.map_or_else(|_| "?".to_owned(), |text| text.trim().to_owned())
    };
    HostTitle {
        sysname: kernel("ostype"),
        nodename: kernel("hostname"),
        release: kernel("osrelease"),
        machine: std::env::consts::ARCH.to_owned(),
        processors,
    }
}
