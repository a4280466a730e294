//! Third-party clients.

use std::fs;

use weir_tapdisk::nbd::NbdOptions;
use weir_testing::{Scratch, skipped};

use crate::server::{TestServer, has, noise, run};

#[test]
fn qemu_img_copies_there_and_back() {
    if !has("qemu_img_copies_there_and_back", "qemu-img", "qemu-utils") {
        return;
    }
    let server = TestServer::new(32);
    let data = noise(32 << 20, 1);
    let source = server.folder.path().join("source");
    fs::write(&source, &data).unwrap();
    let (source, uri) = (source.to_str().unwrap(), server.uri("disk"));
    run(
        "qemu-img",
        &["convert", "-n", "-f", "raw", "-O", "raw", source, &uri],
    );
    assert!(server.content("disk") == data, "the image is the source");
    run(
        "qemu-img",
        &["compare", "-f", "raw", "-F", "raw", source, &uri],
    );
    let back = server.folder.path().join("back");
    run(
        "qemu-img",
        &[
            "convert",
            "-f",
            "raw",
            "-O",
            "raw",
            &uri,
            back.to_str().unwrap(),
        ],
    );
    assert!(fs::read(back).unwrap() == data, "and so is what was read");
    // Zeroes go as write zeroes; a sparse source is copied as such.
    let holes = fs::File::create(source).unwrap();
    holes.set_len(32 << 20).unwrap();
    run(
        "qemu-img",
        &["convert", "-n", "-f", "raw", "-O", "raw", source, &uri],
    );
    assert!(server.content("disk").iter().all(|byte| *byte == 0));
}

#[test]
fn qemu_io_writes_zeroes_discards_and_flushes() {
    if !has(
        "qemu_io_writes_zeroes_discards_and_flushes",
        "qemu-io",
        "qemu-utils",
    ) {
        return;
    }
    let server = TestServer::new(8);
    let commands = [
        "write -P 0xab 0 1M",
        "write -f -P 0xcd 1M 64k",
        "write -P 0xee 4097k 1k",
        "flush",
        "read -P 0xab 0 1M",
        "write -z 128k 64k",
        "write -z -u 256k 64k",
        "write -z -u -f 512k 4k",
        "discard 2M 1M",
        "read -P 0xab 0 128k",
        "read -P 0 128k 64k",
        "read -P 0 256k 64k",
        "read -P 0 512k 4k",
        "read -P 0xcd 1M 64k",
        "read -P 0xee 4097k 1k",
        "aio_write -P 0x11 5M 1M",
        "aio_write -P 0x22 6M 1M",
        "aio_read 0 2M",
        "aio_flush",
        "read -P 0x11 5M 1M",
    ];
    let uri = server.uri("disk");
    let mut args = vec!["-f", "raw", &uri];
    args.extend(commands.iter().flat_map(|command| ["-c", command]));
    let output = run("qemu-io", &args);
    assert!(
        !output.contains("failed") && !output.contains("error"),
        "{output}"
    );
    let content = server.content("disk");
    assert_eq!(content[..128 << 10], vec![0xab; 128 << 10]);
    assert_eq!(content[128 << 10..192 << 10], vec![0; 64 << 10]);
    assert_eq!(content[6 << 20..7 << 20], vec![0x22; 1 << 20]);
}

#[test]
fn libnbd_sees_the_exports() {
    if !has("libnbd_sees_the_exports", "nbdinfo", "libnbd-bin") {
        return;
    }
    let server = TestServer::of(&["vda", "vdb"], 4, |o| o, NbdOptions::default(), None);
    let output = run("nbdinfo", &["--json", &server.uri("vdb")]);
    let listing: serde_json::Value = serde_json::from_str(&output).unwrap();
    assert_eq!(
        (&listing["protocol"], &listing["TLS"]),
        (&"newstyle-fixed".into(), &false.into())
    );
    assert_eq!(listing["structured"], true);
    let export = &listing["exports"][0];
    let expected = [
        ("export-name", "vdb".into()),
        ("export-size", serde_json::Value::from(4 << 20)),
        ("is_read_only", false.into()),
        ("is_rotational", false.into()),
        ("can_flush", true.into()),
        ("can_fua", true.into()),
        ("can_trim", true.into()),
        ("can_zero", true.into()),
        ("can_df", true.into()),
        ("can_multi_conn", true.into()),
        ("block_size_maximum", (32 << 20).into()),
    ];
    for (key, value) in expected {
        assert_eq!(export[key], value, "{key}: {output}");
    }
    let list = run("nbdinfo", &["--list", "--json", &server.uri("")]);
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    let names = list["exports"].as_array().unwrap().iter();
    let names: Vec<&str> = names.map(|e| e["export-name"].as_str().unwrap()).collect();
    assert_eq!(names, ["vda", "vdb"]);
}

#[test]
fn nbdcopy_copies_by_several_connections_and_over_loopback() {
    if !has(
        "nbdcopy_copies_by_several_connections_and_over_loopback",
        "nbdcopy",
        "libnbd-bin",
    ) {
        return;
    }
    for port in [None, Some(0)] {
        let server = TestServer::of(&["disk"], 32, |o| o, NbdOptions::default(), port);
        let data = noise(32 << 20, 5);
        let source = server.folder.path().join("source");
        fs::write(&source, &data).unwrap();
        let (source, uri) = (source.to_str().unwrap(), server.uri("disk"));
        run("nbdcopy", &["--connections=4", "--flush", source, &uri]);
        assert!(server.content("disk") == data, "the image is the source");
        let back = server.folder.path().join("back");
        run(
            "nbdcopy",
            &["--connections=4", &uri, back.to_str().unwrap()],
        );
        assert!(fs::read(back).unwrap() == data, "and so is what was read");
    }
}

#[test]
fn fio_verifies_what_it_wrote() {
    if !has("fio_verifies_what_it_wrote", "fio", "fio") {
        return;
    }
    let engines = run("fio", &["--enghelp"]);
    if !engines.lines().any(|line| line.trim() == "nbd") {
        skipped("fio_verifies_what_it_wrote", "fio without nbd");
        return;
    }
    let server = TestServer::new(64);
    let scratch = Scratch::new();
    let uri = format!("--uri={}", server.uri("disk"));
    let args = [
        "--name=verify",
        "--ioengine=nbd",
        &uri,
        "--rw=randrw",
        "--bsrange=4k-128k",
        "--iodepth=32",
        "--size=64m",
        "--verify=crc32c",
        "--verify_fatal=1",
        "--fsync=64",
        "--output-format=json",
        "--randseed=1",
    ];
    let output = std::process::Command::new("fio")
        .args(args)
        .current_dir(scratch.path())
        .output()
        .unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stdout}{err}");
    let json: serde_json::Value =
        serde_json::from_str(&stdout[stdout.find('{').unwrap()..]).unwrap();
    let job = &json["jobs"][0];
    assert_eq!(job["error"], 0);
    let counted = server.disks[0].counters();
    let writes = counted.of(weir_model::Op::Write);
    assert_eq!(
        writes.requests,
        job["write"]["total_ios"].as_u64().unwrap(),
        "each write once"
    );
    assert_eq!(writes.bytes, job["write"]["io_bytes"].as_u64().unwrap());
    assert_eq!((writes.errors, counted.in_flight), (0, 0));
}
