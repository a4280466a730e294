//! Serves one disk like `weir tapdisk`, with the same code, but without the rest of weir, which
//! takes a tenth of the time to build. `cargo xtask bench tapdisk` measures it.
//!
//! `cargo run --release -p weir-tapdisk --example serve -- image=FILE [socket=PATH] [nbd=PATH]
//! [tap=PATH] [engine=auto|uring|sync] [cache=auto|direct|page] [poll_us=N] [queues=N]`
//!
//! It serves until it is killed.

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::net::SocketType;
use weir_tapdisk::nbd::{self, Export, NbdOptions};
use weir_tapdisk::{
    ControlServer, DiskOptions, Hub, ServedDisk, ServerSocket, SocketAccess, StopEvent, vhost,
};

fn main() -> Result<()> {
    let mut disk = DiskOptions::new("");
    let mut vhost = vhost::VhostOptions::new(Arc::new(|_| {}));
    let (mut socket, mut nbd, mut tap) = (None, None, None);
    for arg in std::env::args().skip(1) {
        let (key, value) = arg
            .split_once('=')
            .with_context(|| format!("`{arg}` is not KEY=VALUE"))?;
        match key {
            "image" => disk.image = value.into(),
            "socket" => socket = Some(value.to_owned()),
            "nbd" => nbd = Some(value.to_owned()),
            "tap" => tap = Some(value.to_owned()),
            "engine" => disk.engine = value.parse().map_err(anyhow::Error::msg)?,
            "cache" => disk.cache = value.parse().map_err(anyhow::Error::msg)?,
            "poll_us" => vhost.poll = Duration::from_micros(value.parse().context("poll_us")?),
            "queues" => vhost.queues = value.parse().context("queues")?,
            _ => bail!("unknown key `{key}`"),
        }
    }
    let (stop, hub) = (StopEvent::new()?, Arc::new(Hub::default()));
    let disk = ServedDisk::open(disk)?;
    disk.attach(&hub, Arc::new(Default::default))?;
    let tap = tap
        .map(|path| ControlServer::start(&hub, Path::new(&path), SocketAccess::default(), &stop));
    let _tap = tap.transpose()?;
    thread::scope(|scope| {
        if let Some(path) = nbd {
            let address = format!("unix:{path}").parse();
            let address = address.map_err(anyhow::Error::msg)?;
            let listener = nbd::Listener::bind(&address, SocketAccess::default())?;
            let export = Export::new("disk", disk.clone()).poll(vhost.poll);
            let stop = &stop;
            scope.spawn(move || nbd::serve(&[export], &[listener], &NbdOptions::default(), stop));
        }
        if let Some(path) = socket {
            let socket = ServerSocket::bind(
                Path::new(&path),
                SocketType::STREAM,
                SocketAccess::default(),
            )?;
            vhost::serve(&disk, &socket, &vhost, &stop)?;
        }
        anyhow::Ok(())
    })
}
