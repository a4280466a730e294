//! Images that end within a block: every byte of them is served.

use std::fs::{self, File};

use weir_tapdisk::DiskOptions;

use crate::client::{Ask, Client, READ, TRIM, WRITE, WRITE_ZEROES};
use crate::server::{TestServer, has, noise, run};

const SIZES: [u64; 7] = [1, 513, 1000, 4095, 4097, (1 << 20) + 1, (1 << 20) + 512];

/// An image of `size` bytes, replacing the default one.
fn of_size(size: u64) -> TestServer {
    TestServer::with(0, |options: DiskOptions| {
        fs::write(&options.image, noise(size as usize, size)).unwrap();
        options
    })
}

fn ask(kind: u16, offset: u64, length: u32) -> Ask {
    Ask {
        kind,
        cookie: offset,
        offset,
        length,
        flags: 0,
    }
}

#[test]
fn every_byte_of_an_image_is_read_and_written() {
    for size in SIZES {
        let server = of_size(size);
        let mut content = noise(size as usize, size);
        let mut client = Client::new(server.connect(), "disk", true);
        assert_eq!(client.size_bytes, size);
        let whole = client.ask(ask(READ, 0, size as u32), &[]);
        assert_eq!(whole.data, content);
        // Steps are what the size is a multiple of: 8 for 1000, 512, else 1.
        let step = 1 << size.trailing_zeros().min(9);
        let mut dice = noise(400, size + 1).into_iter().map(u64::from);
        let mut number = || dice.next().unwrap() << 8 | dice.next().unwrap();
        for kind in [WRITE, WRITE_ZEROES, TRIM, WRITE]
            .into_iter()
            .cycle()
            .take(80)
        {
            let offset = number() % size / step * step;
            let most = (size - offset).min(3000) / step;
            let length = (1 + number() % most) * step;
            let range = offset as usize..(offset + length) as usize;
            let data = match kind {
                WRITE => noise(length as usize, offset),
                _ => Vec::new(),
            };
            let done = client.ask(ask(kind, offset, length as u32), &data);
            assert_eq!(done.error, 0, "{kind} {range:?} of {size}");
            match kind {
                WRITE => content[range].copy_from_slice(&data),
                _ => content[range].fill(0),
            }
        }
        // The last step, and beyond it.
        let last = ask(WRITE, size - step, step as u32);
        content[(size - step) as usize..].fill(5);
        assert_eq!(client.ask(last, &vec![5; step as usize]).error, 0);
        let beyond = ask(WRITE, size - step, 2 * step as u32);
        assert_eq!(client.ask(beyond, &vec![6; 2 * step as usize]).error, 28);
        assert_eq!(client.ask(ask(READ, 0, size as u32), &[]).data, content);
        assert_eq!(server.content("disk"), content, "{size}");
    }
}

#[test]
fn other_programs_copy_the_whole_disk() {
    let test = "other_programs_copy_the_whole_disk";
    let tools = [("nbdcopy", "libnbd-bin"), ("qemu-img", "qemu-utils")];
    for (tool, package) in tools {
        if !has(test, tool, package) {
            continue;
        }
        for size in SIZES {
            let server = of_size(size);
            let copy = server.folder.path().join("copy");
            let (uri, to) = (server.uri("disk"), copy.display().to_string());
            match tool {
                "nbdcopy" => drop(run("nbdcopy", &[&uri, &to])),
                _ => drop(run(
                    "qemu-img",
                    &["convert", "-f", "raw", "-O", "raw", &uri, &to],
                )),
            }
            let mut copied = fs::read(&copy).unwrap();
            // QEMU counts in sectors, and fills the last one with zeroes.
            let padding = copied.split_off(size as usize);
            assert!(padding.len() < 512 && padding.iter().all(|b| *b == 0));
            assert_eq!(copied, noise(size as usize, size), "{tool}, {size}");
        }
    }
}

#[test]
fn a_new_connection_sees_that_the_image_has_grown() {
    let server = TestServer::new(1);
    let mut before = Client::new(server.connect(), "disk", true);
    let image = File::options()
        .write(true)
        .open(server.image("disk"))
        .unwrap();
    image.set_len(3 << 20).unwrap();
    let mut after = Client::new(server.connect(), "disk", true);
    assert_eq!((before.size_bytes, after.size_bytes), (1 << 20, 3 << 20));
    let end = ask(WRITE, (3 << 20) - 4096, 4096);
    assert_eq!(after.ask(end, &[9; 4096]).error, 0);
    // The size agreed with the other client is unchanged.
    assert_eq!(before.ask(end, &[9; 4096]).error, 28);
    assert_eq!(before.ask(ask(READ, 0, 4096), &[]).data, [0; 4096]);
}
