//! An image that grows while its disk is served, and front ends that send nothing.

use std::fs::File;
use std::io::Read;
use std::os::unix::net::UnixStream;

use weir_tapdisk::{ServedDisk, StopEvent, vhost};

use super::*;
use crate::server::disk_options;

/// A message of the back end on its own channel: its number and its flags, without a payload.
fn message(channel: &mut UnixStream) -> (u32, u32) {
    let mut header = [0; 12];
    channel.read_exact(&mut header).unwrap();
    let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap());
    assert_eq!(word(8), 0, "no payload");
    (word(0), word(4))
}

const CONFIG_CHANGE: (u32, u32) = (2, 1);

/// Passes a channel; returns our end of it.
fn channel(front_end: &mut FrontEnd) -> UnixStream {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_read_timeout(Some(TIMEOUT)).unwrap();
    front_end.send_ok(SET_BACKEND_REQ_FD, &[], &[theirs.as_fd()]);
    ours
}

fn capacity(front_end: &mut FrontEnd) -> u64 {
    u64::from_le_bytes(front_end.config()[..8].try_into().unwrap())
}

fn extend(server: &Server, sectors: u64) {
    let image = File::options().write(true).open(server.folder.image());
    image.unwrap().set_len(sectors * 512).unwrap();
}

#[test]
fn a_guest_is_informed_when_its_disk_has_grown() {
    let server = Server::new();
    let guest = Guest::new();
    let mut front_end = FrontEnd::negotiate(&server.path(), ALL);
    let mut reports = channel(&mut front_end);
    assert_eq!(capacity(&mut front_end), SECTORS);
    guest.share(&mut front_end);
    let mut driver = Driver::new(&guest, 0);
    driver.set_up(&mut front_end, 0);
    assert_eq!(driver.run(0, WRITE, SECTORS, 512).0, IOERR);
    for grown in [SECTORS + 1, 2 * SECTORS] {
        extend(&server, grown);
        assert_eq!(message(&mut reports), CONFIG_CHANGE);
        assert_eq!(capacity(&mut front_end), grown);
        assert_eq!(driver.run(0, WRITE, grown - 1, 512).0, OK);
        assert_eq!(driver.run(0, WRITE, grown, 512).0, IOERR);
    }
    server.wait_for_message("the image has grown");
    assert_eq!(
        driver.run(0, FLUSH, 0, 0).0,
        OK,
        "the connection is as before"
    );
}

#[test]
fn a_guest_whose_disk_has_grown_between_two_back_ends_is_informed_by_the_second() {
    let server = Server::new();
    extend(&server, 2 * SECTORS);
    // The front end has read the size elsewhere, so it does not read it here unless it is informed.
    let guest = Guest::new();
    let mut front_end = FrontEnd::negotiate(&server.path(), ALL);
    let mut reports = channel(&mut front_end);
    guest.share(&mut front_end);
    let mut driver = Driver::new(&guest, 0);
    driver.set_up(&mut front_end, 0);
    assert_eq!(message(&mut reports), CONFIG_CHANGE);
    assert_eq!(capacity(&mut front_end), 2 * SECTORS);
    assert_eq!(driver.run(0, READ, 2 * SECTORS - 1, 512).0, OK);
}

#[test]
fn a_front_end_without_a_channel_is_served_and_reported() {
    let server = Server::new();
    let guest = Guest::new();
    let (mut front_end, mut driver) = started(&server, &guest, ALL);
    assert_eq!(capacity(&mut front_end), SECTORS);
    extend(&server, 2 * SECTORS);
    server.wait_for_message("has no channel for that");
    assert_eq!(driver.run(0, READ, 2 * SECTORS - 1, 512).0, OK);
}

#[test]
fn an_invalid_channel_ends_the_connection() {
    let server = Server::new();
    let guest = Guest::new();
    for files in [
        &[][..],
        &[guest.file.as_fd()],
        &[guest.file.as_fd(), guest.file.as_fd()],
    ] {
        let mut front_end = FrontEnd::negotiate(&server.path(), ALL);
        assert!(front_end.try_send(SET_BACKEND_REQ_FD, &[], files).is_err());
        assert!(front_end.is_disconnected());
    }
    let (_front_end, mut driver) = started(&server, &guest, ALL);
    assert_eq!(driver.run(0, READ, 0, 512).0, OK);
}

#[test]
fn a_front_end_that_sends_nothing_is_reported() {
    let server = Server::new();
    let silent = UnixStream::connect(server.path()).unwrap();
    server.wait_for_message("has sent nothing for 5 s");
    drop(silent);
    let guest = Guest::new();
    let (_front_end, mut driver) = started(&server, &guest, ALL);
    assert_eq!(driver.run(0, READ, 0, 512).0, OK);
}

#[test]
fn a_disk_that_ends_within_a_block_is_not_served() {
    let folder = server::Folder::new();
    for bytes in [513, 4095, 4097, (1 << 20) + 1] {
        File::create(folder.image())
            .unwrap()
            .set_len(bytes)
            .unwrap();
        let disk = ServedDisk::open(disk_options(&folder.image())).unwrap();
        let socket = server::listen(&folder.socket());
        let refused = vhost::serve(
            &disk,
            &socket,
            &VhostOptions::new(Arc::new(|_| {})),
            &StopEvent::new().unwrap(),
        );
        let refused = refused.unwrap_err().to_string();
        let whole = format!("truncate -s {}", u64::next_multiple_of(bytes, 512));
        assert!(refused.contains(&whole), "{refused}");
    }
}
