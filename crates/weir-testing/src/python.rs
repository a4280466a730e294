//! [`python_with`]: a Python that has a package of the package index, for comparisons with other
//! programs.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use rustix::fs::{FlockOperation, flock};

use crate::repository::root;
use crate::run::run;

/// The variable with the path of a Python that is used as it is, if it has the module.
const VARIABLE: &str = "WEIR_PYTHON";

/// A module that tests import, and what pip installs for it.
struct Tool {
    module: &'static str,
    packages: &'static [&'static str],
}

/// The version of DuckDB is fixed: random queries are compared with it.
const TOOLS: [Tool; 4] = [
    Tool {
        module: "duckdb",
        packages: &["duckdb==2.0.0"],
    },
    Tool {
        module: "polars",
        packages: &["polars"],
    },
    Tool {
        module: "pandas",
        packages: &["pandas", "pyarrow"],
    },
    Tool {
        module: "pyarrow.flight",
        packages: &["pyarrow"],
    },
];

/// The interpreter of a virtual environment that has `module`, which is one of duckdb, polars,
/// pandas and pyarrow.flight. The environment is kept in `target/python`; the first call creates
/// it. Fails without python3, its `venv` or access to the package index.
///
/// # Panics
/// When `module` is another one.
pub fn python_with(module: &str) -> Result<PathBuf> {
    let tool = TOOLS.iter().find(|tool| tool.module == module);
    let tool = tool.unwrap_or_else(|| panic!("no package is known for {module}"));
    let import = format!("import {module}");
    let given = std::env::var_os(VARIABLE).map(PathBuf::from);
    if let Some(python) = given.filter(|python| succeeds(python, &import)) {
        return Ok(python);
    }
    let folder = root().join("target/python");
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    // Tests of other processes may be creating it.
    let lock = File::create(folder.join(format!("{module}.lock")))?;
    flock(&lock, FlockOperation::LockExclusive)?;
    let venv = folder.join(module);
    let python = venv.join("bin/python3");
    if succeeds(&python, &import) {
        return Ok(python);
    }
    run("python3", &["-m", "venv", &venv.to_string_lossy()])?;
    let program = python.to_string_lossy();
    let install = ["-m", "pip", "install", "-q", "--timeout", "20"];
    run(&program, &[&install, tool.packages].concat())?;
    run(&program, &["-c", &import])?;
    Ok(python)
}

/// Whether Python runs this line.
fn succeeds(python: &Path, line: &str) -> bool {
    let status = Command::new(python)
        .args(["-c", line])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.is_ok_and(|status| status.success())
}
