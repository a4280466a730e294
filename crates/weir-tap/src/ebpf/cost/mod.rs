//! The cost of the live tap, as measured by the kernel: run time of each program, and of empty
//! programs and the least that can do the same for comparison.
#![allow(unsafe_code)]

mod floor;

pub use floor::FloorPrograms;

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libbpf_rs::libbpf_sys::{self, bpf_prog_info};
use weir_model::Nanos;

use super::fold::layout::Folding;
use super::kernel::Kernel;
use super::layout::{self, Config};
use super::needs::Needs;
use super::programs::{Probe, Programs, Sizes};
use super::tap::LiveOptions;
use crate::TapError;

/// Number and duration of a program's runs since statistics were enabled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunTime {
    /// The tracepoint to which it is attached.
    pub tracepoint: &'static str,
    /// Number of runs.
    pub runs: u64,
    /// Total time of the runs.
    pub time_ns: u64,
    /// Runs that the kernel skipped because the program was already running on that processor.
    pub missed: u64,
}

/// While this is held, the kernel measures the time of every program; that adds about 50 ns to each
/// run.
#[derive(Debug)]
pub struct Statistics {
    _fd: OwnedFd,
}

impl Statistics {
    /// Enables the statistics (`BPF_ENABLE_STATS`, kernel 5.8).
    ///
    /// # Errors
    /// Without CAP_SYS_ADMIN.
    pub fn enable() -> io::Result<Statistics> {
        // SAFETY: a system call on numbers; the returned descriptor has no other owner.
        let fd = unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) };
        if fd < 0 {
            return Err(io::Error::from_raw_os_error(-fd));
        }
        // SAFETY: the call succeeded, so this is an open descriptor, owned only here.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Statistics { _fd: fd })
    }
}

/// The runs of a program of another process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramRuns {
    /// The kernel's number of the program.
    pub id: u32,
    /// Its name, at most 15 bytes.
    pub name: String,
    /// Number of runs since statistics were enabled.
    pub runs: u64,
    /// Total time of the runs.
    pub time_ns: u64,
}

/// The runs of the programs that a process has open; empty if it has ended. A program that is
/// closed meanwhile is omitted.
///
/// # Errors
/// If the descriptors of the process cannot be read.
pub fn programs_of(pid: u32) -> io::Result<Vec<ProgramRuns>> {
    let directory = match fs::read_dir(format!("/proc/{pid}/fdinfo")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        directory => directory?,
    };
    let mut ids: Vec<u32> = Vec::new();
    for entry in directory {
        // The descriptor may be closed meanwhile.
        let text = fs::read_to_string(entry?.path()).unwrap_or_default();
        let mut lines = text.lines();
        let id = lines.find_map(|line| line.strip_prefix("prog_id:")?.trim().parse().ok());
        // That of a link is the one of its program.
        ids.extend(id.filter(|id| !ids.contains(id)));
    }
    Ok(ids.into_iter().filter_map(program_runs).collect())
}

fn program_runs(id: u32) -> Option<ProgramRuns> {
    // SAFETY: a system call on a number; the returned descriptor has no other owner.
    let fd = unsafe { libbpf_sys::bpf_prog_get_fd_by_id(id) };
    // SAFETY: as there is no error, this is an open descriptor, owned only here.
    let program = (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })?;
    let info = information(program.as_fd())?;
    let name = info.name.iter().map(|c| *c as u8).take_while(|c| *c != 0);
    Some(ProgramRuns {
        id,
        name: String::from_utf8_lossy(&name.collect::<Vec<u8>>()).into_owned(),
        runs: info.run_cnt,
        time_ns: info.run_time_ns,
    })
}

/// What the kernel reports of a program.
fn information(program: BorrowedFd<'_>) -> Option<bpf_prog_info> {
    let mut info = bpf_prog_info::default();
    let mut bytes = size_of::<bpf_prog_info>() as u32;
    // SAFETY: a buffer for the answer and its true size, both alive during the call.
    let failed =
        unsafe { libbpf_sys::bpf_prog_get_info_by_fd(program.as_raw_fd(), &mut info, &mut bytes) };
    (failed == 0).then_some(info)
}

/// The statistics of one program.
pub(super) fn run_time(tracepoint: &'static str, program: BorrowedFd<'_>) -> RunTime {
    let Some(info) = information(program) else {
        return RunTime {
            tracepoint,
            ..RunTime::default()
        };
    };
    RunTime {
        tracepoint,
        runs: info.run_cnt,
        time_ns: info.run_time_ns,
        missed: info.recursion_misses,
    }
}

/// Processor time of the calling thread.
pub fn thread_time_ns() -> Nanos {
    super::clock::thread_ns()
}

/// Empty programs, on the tracepoints of a request.
#[derive(Debug)]
pub struct EmptyPrograms(Programs);

impl EmptyPrograms {
    /// Attaches them.
    ///
    /// # Errors
    /// As [`super::open`].
    pub fn attach() -> Result<EmptyPrograms, TapError> {
        let empty = |program, tracepoint| Probe {
            program,
            tracepoint,
            without: "",
        };
        let probes = [
            empty("empty_start", "block_io_start"),
            empty("empty_issue", "block_rq_issue"),
            empty("empty_complete", "block_rq_complete"),
        ];
        let sizes = Sizes::new(&LiveOptions::default(), layout::RECORD_BYTES)?;
        let numbers = Kernel::running()?.numbers();
        let config = Config::new(&Needs::of(&[], false, true)?, &sizes, &numbers, true, false);
        let mut programs = Programs::load(&probes, &config, &Folding::default(), &sizes)?;
        programs.attach()?;
        Ok(EmptyPrograms(programs))
    }

    /// Run time of each so far.
    pub fn run_times(&self) -> Vec<RunTime> {
        self.0.run_times()
    }
}
