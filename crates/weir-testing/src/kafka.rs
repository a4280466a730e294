//! [`Kafka`]: a broker of Apache Kafka in a process of its own, with its data in a temporary
//! folder.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Mutex;

use anyhow::{Context, Result, bail};

use crate::Scratch;
use crate::java::{Java, QUICK, free_ports, temporary, wait_for_port};
use crate::repository::root;

/// The memory of a broker.
const MEMORY: &str = "-Xmx384m";

/// The identity of the cluster, any 16 bytes in base64url.
const CLUSTER: &str = "MkU3OEVBNTcwNTJENDM2Qg";

/// A broker, which ends when this is dropped.
pub struct Kafka {
    java: Java,
    /// Options of the Java runtime.
    options: &'static [&'static str],
    folder: Scratch,
    /// The port for clients without encryption.
    port: u16,
    /// The port for clients with TLS and a password.
    secure_port: u16,
    process: Option<Child>,
}

/// The ports of a broker.
#[derive(Clone, Copy)]
struct Ports {
    port: u16,
    secure_port: u16,
    controller: u16,
}

/// The user of the port with TLS.
#[derive(Clone, Copy, Debug)]
pub struct KafkaUser<'a> {
    /// The name.
    pub name: &'a str,
    /// The password.
    pub password: &'a str,
    /// The broker's certificate, PEM.
    pub certificate: &'a Path,
    /// Its key, PEM.
    pub key: &'a Path,
}

impl Kafka {
    /// Fetches Kafka with Maven the first time, and starts a broker. With `user`, it has a second
    /// port with TLS and SASL (PLAIN).
    ///
    /// # Errors
    /// When Java or Maven are missing, or Kafka cannot be fetched or does not start.
    pub fn start(user: Option<KafkaUser<'_>>) -> Result<Kafka> {
        Kafka::start_with(user, &QUICK)
    }

    /// The same, with these options of the Java runtime.
    ///
    /// # Errors
    /// As [`Kafka::start`].
    pub fn start_with(
        user: Option<KafkaUser<'_>>,
        options: &'static [&'static str],
    ) -> Result<Kafka> {
        let [port, secure_port, controller] = free_ports()?;
        let ports = Ports {
            port,
            secure_port,
            controller,
        };
        let quorum = format!("controller.quorum.bootstrap.servers=127.0.0.1:{controller}");
        let mut kafka = Kafka::formatted(1, &ports, &quorum, user, options)?;
        kafka.restart()?;
        Ok(kafka)
    }

    /// Three brokers, each also a controller.
    ///
    /// # Errors
    /// As [`Kafka::start`].
    pub fn start_three() -> Result<[Kafka; 3]> {
        let ports: [u16; 9] = free_ports()?;
        let voters = (1..=3).map(|id| format!("{id}@127.0.0.1:{}", ports[3 * id - 1]));
        let voters: Vec<String> = voters.collect();
        let quorum = format!("controller.quorum.voters={}", voters.join(","));
        let node = |id: usize| {
            let [port, secure_port, controller] = [3, 2, 1].map(|back| ports[3 * id - back]);
            let ports = Ports {
                port,
                secure_port,
                controller,
            };
            Kafka::formatted(id, &ports, &quorum, None, &QUICK)
        };
        let mut brokers = [node(1)?, node(2)?, node(3)?];
        // A broker accepts no connections before two of three controllers run.
        for broker in &mut brokers {
            broker.begin()?;
        }
        for broker in &mut brokers {
            broker.wait()?;
        }
        Ok(brokers)
    }

    /// A broker with an empty folder of data, which does not run yet.
    fn formatted(
        id: usize,
        ports: &Ports,
        quorum: &str,
        user: Option<KafkaUser<'_>>,
        options: &'static [&'static str],
    ) -> Result<Kafka> {
        let java = fetched()?;
        let Ports {
            port,
            secure_port,
            controller,
        } = *ports;
        let folder = Scratch::new();
        let data = folder.file("data");
        let mut properties = format!(
            "process.roles=broker,controller\n\
             node.id={id}\n\
             {quorum}\n\
             controller.listener.names=CONTROLLER\n\
             log.dirs={data}\n\
             auto.create.topics.enable=false\n\
             offsets.topic.replication.factor=1\n\
             transaction.state.log.replication.factor=1\n\
             transaction.state.log.min.isr=1\n\
             message.max.bytes=1048576\n"
        );
        let mut listeners =
            format!("PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}");
        let mut map = "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT".to_owned();
        let mut advertised = format!("PLAINTEXT://127.0.0.1:{port}");
        if let Some(user) = user {
            listeners += &format!(",SECURE://127.0.0.1:{secure_port}");
            // The name in its certificate.
            advertised += &format!(",SECURE://localhost:{secure_port}");
            map += ",SECURE:SASL_SSL";
            let pem = |path: &Path| -> Result<String> {
                let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
                Ok(text.trim().replace('\n', "\\n"))
            };
            let KafkaUser { name, password, .. } = user;
            properties += &format!(
                "sasl.enabled.mechanisms=PLAIN\n\
                 listener.name.secure.ssl.keystore.type=PEM\n\
                 listener.name.secure.ssl.keystore.certificate.chain={}\n\
                 listener.name.secure.ssl.keystore.key={}\n\
                 listener.name.secure.plain.sasl.jaas.config=\
                 org.apache.kafka.common.security.plain.PlainLoginModule required \
                 user_{name}=\"{password}\";\n",
                pem(user.certificate)?,
                pem(user.key)?,
            );
        }
        properties += &format!(
            "listeners={listeners}\n\
             advertised.listeners={advertised}\n\
             listener.security.protocol.map={map}\n\
             inter.broker.listener.name=PLAINTEXT\n"
        );
        let file = folder.file("server.properties");
        fs::write(&file, properties)?;
        let files = temporary(&folder);
        let formatting = [&QUICK[..], &[MEMORY, &files]].concat();
        let mut format = java.command(&formatting, "kafka.tools.StorageTool");
        format.args(["format", "-t", CLUSTER, "-c", &file]);
        if quorum.contains("bootstrap") {
            format.arg("--standalone");
        }
        let output = format.stdin(Stdio::null()).output().context("java")?;
        if !output.status.success() {
            bail!("format: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(Kafka {
            java,
            options,
            folder,
            port,
            secure_port,
            process: None,
        })
    }

    /// `HOST:PORT` for clients.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// `HOST:PORT` for clients with TLS and a password.
    pub fn secure_address(&self) -> String {
        format!("localhost:{}", self.secure_port)
    }

    /// The broker's process.
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Child::id)
    }

    /// Ends the broker as by `kill -9`.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Starts the broker again, with its data, and waits until it accepts connections.
    ///
    /// # Errors
    /// When it does not start.
    pub fn restart(&mut self) -> Result<()> {
        self.begin()?;
        self.wait()
    }

    /// Starts the broker again, with its data.
    ///
    /// # Errors
    /// When it does not start.
    pub fn begin(&mut self) -> Result<()> {
        self.kill();
        let log = File::create(self.folder.file("log"))?;
        let files = temporary(&self.folder);
        let options = [self.options, &[MEMORY, &files]].concat();
        let mut java = self.java.command(&options, "kafka.Kafka");
        java.arg(self.folder.file("server.properties"))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        self.process = Some(java.spawn().context("java")?);
        Ok(())
    }

    /// Waits until it accepts connections.
    ///
    /// # Errors
    /// When it has ended.
    pub fn wait(&mut self) -> Result<()> {
        let log = self.folder.file("log");
        let Some(process) = &mut self.process else {
            bail!("the broker was not started");
        };
        let ready = wait_for_port(process, self.port, &log);
        if ready.is_err() {
            self.kill();
        }
        ready.context("the broker")
    }
}

impl Drop for Kafka {
    fn drop(&mut self) {
        self.kill();
    }
}

fn fetched() -> Result<Java> {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock();
    let pom = root().join("crates/weir-testing/kafka/pom.xml");
    Java::build(&root().join("target/kafka"), &pom, &[])
}
