//! [`FlinkCluster`]: Apache Flink as operators run it: a job manager, a task manager and the SQL
//! Gateway, each in a process of its own.

use std::fs::{self, File};
use std::process::{Child, Stdio};

use anyhow::{Context, Result};

use crate::Scratch;
use crate::flink::built;
use crate::java::{Java, QUICK, free_ports, temporary, wait_for_port};

/// One of the processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlinkProcess {
    /// Accepts jobs and restarts their tasks.
    JobManager,
    /// Runs tasks.
    TaskManager,
    /// Accepts SQL.
    Gateway,
}

impl FlinkProcess {
    fn class(self) -> &'static str {
        match self {
            FlinkProcess::JobManager => {
                "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
            }
            FlinkProcess::TaskManager => "org.apache.flink.runtime.taskexecutor.TaskManagerRunner",
            FlinkProcess::Gateway => "org.apache.flink.table.gateway.SqlGateway",
        }
    }

    fn memory(self) -> &'static str {
        match self {
            FlinkProcess::TaskManager => "-Xmx384m",
            _ => "-Xmx256m",
        }
    }
}

/// A cluster, which ends when this is dropped.
pub struct FlinkCluster {
    java: &'static Java,
    /// Options of the Java runtime.
    options: &'static [&'static str],
    folder: Scratch,
    /// Of the REST API of the job manager.
    rest_port: u16,
    gateway_port: u16,
    processes: Vec<(FlinkProcess, Child)>,
}

impl FlinkCluster {
    /// Fetches Flink with Maven the first time, and starts a cluster with this number of slots.
    ///
    /// # Errors
    /// When Java or Maven are missing, or Flink cannot be fetched or does not start.
    pub fn start(slots: usize) -> Result<FlinkCluster> {
        FlinkCluster::start_with(slots, &QUICK)
    }

    /// The same, with these options of the Java runtime.
    ///
    /// # Errors
    /// As [`FlinkCluster::start`].
    pub fn start_with(slots: usize, options: &'static [&'static str]) -> Result<FlinkCluster> {
        let java = built()?;
        let [rpc_port, rest_port, gateway_port] = free_ports()?;
        let folder = Scratch::new();
        let files = folder.file("tmp");
        fs::create_dir(&files)?;
        // A task manager that no script starts needs all its sizes.
        let config = format!(
            "jobmanager.rpc.address: 127.0.0.1\n\
             jobmanager.rpc.port: {rpc_port}\n\
             jobmanager.bind-host: 127.0.0.1\n\
             jobmanager.memory.heap.size: 256m\n\
             rest.address: 127.0.0.1\n\
             rest.bind-address: 127.0.0.1\n\
             rest.port: {rest_port}\n\
             sql-gateway.endpoint.rest.address: 127.0.0.1\n\
             sql-gateway.endpoint.rest.bind-address: 127.0.0.1\n\
             sql-gateway.endpoint.rest.port: {gateway_port}\n\
             taskmanager.host: 127.0.0.1\n\
             taskmanager.bind-host: 127.0.0.1\n\
             taskmanager.numberOfTaskSlots: {slots}\n\
             taskmanager.cpu.cores: 1.0\n\
             taskmanager.memory.task.heap.size: 256m\n\
             taskmanager.memory.task.off-heap.size: 0m\n\
             taskmanager.memory.framework.heap.size: 128m\n\
             taskmanager.memory.framework.off-heap.size: 64m\n\
             taskmanager.memory.network.min: 32m\n\
             taskmanager.memory.network.max: 32m\n\
             taskmanager.memory.managed.size: 64m\n\
             taskmanager.memory.jvm-metaspace.size: 200m\n\
             taskmanager.memory.jvm-overhead.min: 64m\n\
             taskmanager.memory.jvm-overhead.max: 64m\n\
             heartbeat.interval: 1000\n\
             heartbeat.timeout: 6000\n\
             restart-strategy.type: fixed-delay\n\
             restart-strategy.fixed-delay.attempts: 1000\n\
             restart-strategy.fixed-delay.delay: 500 ms\n\
             execution.checkpointing.dir: file://{}\n\
             io.tmp.dirs: {files}\n",
            folder.file("checkpoints"),
        );
        fs::write(folder.file("config.yaml"), config)?;
        let mut cluster = FlinkCluster {
            java,
            options,
            folder,
            rest_port,
            gateway_port,
            processes: Vec::new(),
        };
        let all = [
            FlinkProcess::JobManager,
            FlinkProcess::TaskManager,
            FlinkProcess::Gateway,
        ];
        for process in all {
            cluster.spawn(process)?;
        }
        all.into_iter()
            .try_for_each(|process| cluster.wait_for(process))?;
        Ok(cluster)
    }

    /// The URL of the gateway.
    pub fn gateway(&self) -> String {
        format!("http://127.0.0.1:{}", self.gateway_port)
    }

    /// The processes.
    pub fn pids(&self) -> Vec<u32> {
        let pids = self.processes.iter().map(|(_, process)| process.id());
        pids.collect()
    }

    /// Ends a process as by `kill -9`.
    pub fn kill(&mut self, which: FlinkProcess) {
        for (_, mut process) in self.processes.extract_if(.., |(of, _)| *of == which) {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Starts a process that was killed, and waits until it accepts connections.
    ///
    /// # Errors
    /// When it does not start.
    pub fn restart(&mut self, which: FlinkProcess) -> Result<()> {
        self.kill(which);
        self.spawn(which)?;
        self.wait_for(which)
    }

    fn spawn(&mut self, which: FlinkProcess) -> Result<()> {
        let log = File::create(self.log(which))?;
        let files = temporary(&self.folder);
        let options = [self.options, &[which.memory(), &files]].concat();
        let mut java = self.java.command(&options, which.class());
        java.env("FLINK_CONF_DIR", self.folder.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        if which != FlinkProcess::Gateway {
            java.arg("--configDir").arg(self.folder.path());
        }
        let process = java.spawn().context("java")?;
        self.processes.push((which, process));
        Ok(())
    }

    /// Waits for the port of a process; a task manager has none that is known.
    fn wait_for(&mut self, which: FlinkProcess) -> Result<()> {
        let port = match which {
            FlinkProcess::JobManager => self.rest_port,
            FlinkProcess::Gateway => self.gateway_port,
            FlinkProcess::TaskManager => return Ok(()),
        };
        let log = self.log(which);
        let found = self.processes.iter_mut().find(|(of, _)| *of == which);
        let (_, process) = found.context("it was started")?;
        wait_for_port(process, port, &log).with_context(|| format!("{which:?}"))
    }

    fn log(&self, which: FlinkProcess) -> String {
        self.folder.file(&format!("{which:?}.log"))
    }
}

impl Drop for FlinkCluster {
    fn drop(&mut self) {
        for (_, process) in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
