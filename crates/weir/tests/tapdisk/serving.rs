//! The process: its log, its sockets and their permissions, startup and shutdown.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;

use crate::process::{Scratch, TIMEOUT, Tapdisk, WEIR, skip};

/// Runs `weir tapdisk` with invalid arguments; returns its exit code and its standard error.
fn refused(args: &[&str]) -> (Option<i32>, String) {
    let output = Command::new("timeout")
        .args(["20", WEIR, "tapdisk"])
        .args(args)
        .output();
    let output = output.unwrap();
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.stdout, b"", "stdout carries data only");
    (output.status.code(), printed)
}

fn is_socket(path: &str) -> bool {
    fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket())
}

#[test]
fn it_logs_its_disks_and_removes_its_sockets() {
    let scratch = Scratch::new();
    let (image, socket) = (scratch.image("a.raw", 8), scratch.file("a.sock"));
    let args = [
        "--image", &image, "--socket", &socket, "--vm", "web", "--vdisk", "/dev/vda", "--serial",
        "vol0",
    ];
    let tapdisk = Tapdisk::start(&args);
    let printed = tapdisk.printed();
    for part in [&image, &socket, "size_bytes=8388608", "web", "/dev/vda"] {
        assert!(printed.contains(part), "{part}: {printed}");
    }
    assert_eq!(tapdisk.tap(), format!("{socket}.tap"));
    for path in [socket.as_str(), tapdisk.tap()] {
        assert!(is_socket(path));
        assert_eq!(fs::metadata(path).unwrap().mode() & 0o777, 0o600, "{path}");
    }
    let status = tapdisk.status();
    let disk = &status["disks"][0];
    assert_eq!(status["pid"], tapdisk.pid());
    assert_eq!(
        (&disk["vm"], &disk["vdisk"], &disk["serial"]),
        (&"web".into(), &"/dev/vda".into(), &"vol0".into())
    );
    assert_eq!(
        (&disk["pdisk"], &disk["size_bytes"]),
        (&image.as_str().into(), &(8 << 20).into())
    );
    // `weir tapdisk status` accepts the socket of a disk and finds the tap's own socket.
    let page = Command::new(WEIR)
        .args(["tapdisk", "status", &socket])
        .output()
        .unwrap();
    let page = String::from_utf8(page.stdout).unwrap();
    assert!(
        page.contains("/dev/vda of web") && page.contains("vol0"),
        "{page}"
    );
    let tap = tapdisk.tap().to_owned();
    tapdisk.signal("INT");
    let ended = tapdisk.finish();
    assert_eq!(ended.code, Some(130), "{}", ended.printed);
    assert!(
        !is_socket(&socket) && !is_socket(&tap),
        "the sockets are removed at the end"
    );
}

#[test]
fn sockets_of_a_killed_tapdisk_are_replaced_and_those_of_a_running_one_are_not() {
    let scratch = Scratch::new();
    let (image, socket) = (scratch.image("a.raw", 4), scratch.file("a.sock"));
    let args = ["--image", &image, "--socket", &socket];
    Tapdisk::start(&args).kill();
    assert!(is_socket(&socket), "a killed process leaves them");
    let living = Tapdisk::start(&args);
    let other = scratch.image("b.raw", 4);
    let (code, printed) = refused(&["--image", &other, "--socket", &socket]);
    assert_eq!(code, Some(1), "{printed}");
    assert!(
        printed.contains(&socket) && printed.contains("another process serves this socket"),
        "{printed}"
    );
    assert!(
        is_socket(&socket) && UnixStream::connect(living.tap()).is_ok(),
        "it is not removed"
    );
    // A file that is not a socket is not removed.
    let precious = scratch.image("precious", 1);
    let (code, printed) = refused(&["--image", &other, "--socket", &precious]);
    assert_eq!(code, Some(1), "{printed}");
    assert_eq!(fs::metadata(&precious).unwrap().len(), 1 << 20);
    // The socket of a program other than weir is not removed either.
    let foreign = scratch.file("foreign");
    let _listener = UnixListener::bind(&foreign).unwrap();
    let (code, printed) = refused(&["--image", &other, "--socket", &foreign]);
    assert_eq!(code, Some(1), "{printed}");
    living.stop();
}

#[test]
fn an_image_has_one_writer() {
    let scratch = Scratch::new();
    let image = scratch.image("a.raw", 4);
    let first = Tapdisk::start(&["--image", &image, "--socket", &scratch.file("a.sock")]);
    let second = scratch.file("b.sock");
    let (code, printed) = refused(&["--image", &image, "--socket", &second]);
    assert_eq!(code, Some(1), "{printed}");
    assert!(printed.contains(&image), "{printed}");
    assert!(!is_socket(&second), "a failed start leaves no socket");
    first.stop();
}

#[test]
fn invalid_options_are_reported_before_anything_is_opened() {
    let scratch = Scratch::new();
    let image = scratch.image("a.raw", 4);
    let socket = scratch.file("a.sock");
    let cases: [(&[&str], &str); 9] = [
        (&[], "no disk is specified"),
        (&["--image", &image], "the disk has no socket; add one"),
        (
            &[
                "--image",
                &image,
                "--socket",
                &socket,
                "--block-size",
                "513",
            ],
            "512, 1024, 2048 or 4096",
        ),
        (&["--disk", "image=/a,sokcet=/b"], "did you mean `socket`?"),
        (
            &[
                "--image",
                &image,
                "--socket",
                &socket,
                "--nbd",
                "10.0.0.1:1",
            ],
            "--nbd",
        ),
        (
            &["--image", &image, "--socket", &socket, "--tap", &socket],
            "used by two sockets",
        ),
        (
            &[
                "--image",
                &image,
                "--socket",
                &socket,
                "--socket-mode",
                "999",
            ],
            "digits from 0 to 7",
        ),
        (
            &["--image", &image, "--socket", &socket, "--delay", "op=r"],
            "--delay",
        ),
        (
            &["--image", &image, "--disk", "image=/b,socket=/c"],
            "cannot be used with",
        ),
    ];
    for (args, part) in cases {
        let (code, printed) = refused(args);
        assert_eq!(code, Some(2), "{args:?}: {printed}");
        assert!(printed.contains(part), "{args:?}: {printed}");
    }
    let missing = scratch.file("none.raw");
    let (code, printed) = refused(&["--image", &missing, "--socket", &socket]);
    assert_eq!(code, Some(1), "{printed}");
    assert!(printed.contains(&missing), "{printed}");
    assert!(!is_socket(&socket));
}

#[test]
fn an_image_of_another_format_is_refused_unless_it_is_to_be_raw() {
    let scratch = Scratch::new();
    let (image, socket) = (scratch.image("a.img", 1), scratch.file("a.sock"));
    let mut content = vec![0; 1 << 20];
    content[..4].copy_from_slice(b"QFI\xfb");
    fs::write(&image, &content).unwrap();
    let serve = ["--image", &image, "--socket", &socket];
    let (code, printed) = refused(&serve);
    assert_eq!(code, Some(1), "{printed}");
    assert!(
        printed.contains("qcow2") && printed.contains("format `raw`"),
        "{printed}"
    );
    assert!(!is_socket(&socket));
    let (code, printed) = refused(&[&serve[..], &["--format", "qcow2"]].concat());
    assert_eq!(code, Some(2), "{printed}");
    assert!(printed.contains("expected raw"), "{printed}");
    Tapdisk::start(&[&serve[..], &["--format", "raw"]].concat()).stop();
    Tapdisk::start(&[
        "--disk",
        &format!("image={image},socket={socket},format=raw"),
    ])
    .stop();
    let config = scratch.file("web.toml");
    let text = format!("[[disk]]\nimage = \"{image}\"\nsocket = \"{socket}\"\nformat = \"raw\"\n");
    fs::write(&config, text).unwrap();
    Tapdisk::start(&["--config", &config]).stop();
    assert_eq!(fs::read(&image).unwrap(), content);
}

#[test]
fn an_image_that_ends_within_a_block_is_served_over_nbd_alone() {
    let scratch = Scratch::new();
    let (image, socket) = (scratch.file("a.raw"), scratch.file("a.sock"));
    for bytes in [513, 4095, 4097, (1 << 20) + 1] {
        fs::write(&image, vec![1; bytes]).unwrap();
        let (code, printed) = refused(&["--image", &image, "--socket", &socket]);
        assert_eq!(code, Some(1), "{printed}");
        assert!(
            printed.contains("truncate -s") && printed.contains("over NBD only"),
            "{printed}"
        );
        assert!(!is_socket(&socket));
        let nbd = format!("unix:{}", scratch.file("a.nbd"));
        let tapdisk = Tapdisk::start(&["--image", &image, "--nbd", &nbd]);
        assert_eq!(tapdisk.status()["disks"][0]["size_bytes"], bytes);
        tapdisk.stop();
    }
}

#[test]
fn a_port_alone_needs_no_path_for_the_tap() {
    let scratch = Scratch::new();
    let image = scratch.image("a.raw", 1);
    let tapdisk = Tapdisk::start(&["--image", &image, "--nbd", "127.0.0.1:0"]);
    let tap = tapdisk.tap().to_owned();
    let printed = tapdisk.printed();
    let port = printed.split_once("over NBD address=127.0.0.1:").unwrap().1;
    let port = port.split_once(' ').unwrap().0;
    assert!(
        tap.ends_with(&format!("/weir-tapdisk/port-{port}.tap")),
        "{tap} {port}"
    );
    assert_eq!(tapdisk.status()["disks"][0]["pdisk"], image.as_str());
    tapdisk.stop();
    assert!(!is_socket(&tap));
}

#[test]
fn the_process_that_is_served_keeps_its_place_and_gets_one_at_once() {
    let scratch = Scratch::new();
    let image = scratch.image("a.raw", 1);
    let path = scratch.file("a.nbd");
    let nbd = format!("unix:{path}");
    let clients = || UnixStream::connect(&path).unwrap();
    let is_served = |mut client: &UnixStream| {
        client.set_read_timeout(Some(TIMEOUT)).unwrap();
        client.read(&mut [0; 18]).is_ok_and(|bytes| bytes == 18)
    };
    let start = |owner: u32| {
        let owner = owner.to_string();
        let limits = [
            "--nbd-clients",
            "2",
            "--nbd-idle",
            "1h",
            "--until-exit",
            &owner,
        ];
        Tapdisk::start(&[&["--image", &image, "--nbd", &nbd][..], &limits].concat())
    };
    // This process is the owner: other clients have to wait for an hour, the owner does not.
    let tapdisk = start(std::process::id());
    let mut other = Command::new("sh")
        .args(["-c", "exec sleep 1000"])
        .spawn()
        .unwrap();
    let own = [clients(), clients()];
    assert!(own.iter().all(is_served));
    assert!(
        !is_served(&clients()),
        "its own connections do not yield to each other"
    );
    drop(own);
    tapdisk.stop();
    // This process is not the owner here, and has to wait for idle connections of others.
    let tapdisk = start(other.id());
    let strangers = [clients(), clients()];
    assert!(strangers.iter().all(is_served));
    assert!(!is_served(&clients()));
    tapdisk.stop();
    other.kill().unwrap();
    other.wait().unwrap();
}

#[test]
fn one_process_serves_several_disks_of_words_or_of_a_file() {
    let scratch = Scratch::new();
    let [a, b] = ["a.raw", "b.raw"].map(|name| scratch.image(name, 4));
    let [at, bt] = ["a.sock", "b.sock"].map(|name| scratch.file(name));
    let disks = [
        format!("image={a},socket={at},vm=web,vdisk=/dev/vda"),
        format!("image={b},socket={bt},vm=web,vdisk=/dev/vdb,read-only,queues=2"),
    ];
    let words = Tapdisk::start(&["--disk", &disks[0], "--disk", &disks[1]]);
    let by_words = words.status()["disks"].clone();
    words.stop();
    let config = scratch.file("web.toml");
    let text = format!(
        "[[disk]]\nimage = \"{a}\"\nsocket = \"{at}\"\nvm = \"web\"\nvdisk = \"/dev/vda\"\n\
         [[disk]]\nimage = \"{b}\"\nsocket = \"{bt}\"\nvm = \"web\"\nvdisk = \"/dev/vdb\"\n\
         read_only = true\nqueues = 2\n"
    );
    fs::write(&config, text).unwrap();
    let file = Tapdisk::start(&["--config", &config]);
    assert_eq!(file.status()["disks"], by_words);
    assert_eq!(by_words[1]["read_only"], true);
    file.stop();
    fs::write(&config, "[[disk]]\nimage = \"/a\"\nsokcet = \"/b\"\n").unwrap();
    let (code, printed) = refused(&["--config", &config]);
    assert_eq!(code, Some(2), "{printed}");
    assert!(
        printed.contains("web.toml:3") && printed.contains("did you mean `disk.socket`")
            || printed.contains("did you mean `socket`"),
        "{printed}"
    );
}

#[test]
fn another_user_can_connect_if_permitted() {
    let scratch = Scratch::new();
    let (image, socket) = (scratch.image("a.raw", 4), scratch.file("a.sock"));
    let group = fs::metadata(&image).unwrap().gid().to_string();
    let rights = ["--socket-mode", "660", "--socket-group", &group];
    let tapdisk =
        Tapdisk::start(&[&["--image", &image, "--socket", &socket][..], &rights].concat());
    for path in [socket.as_str(), tapdisk.tap()] {
        assert_eq!(fs::metadata(path).unwrap().mode() & 0o777, 0o660, "{path}");
    }
    tapdisk.stop();
}

/// The systemd unit of the service.
const UNIT: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../packaging/weir-tapdisk@.service"
);

#[test]
fn the_rights_of_the_service_are_enough() {
    let test = "the_rights_of_the_service_are_enough";
    let unit = fs::read_to_string(UNIT).unwrap();
    for line in ["CapabilityBoundingSet=", "AmbientCapabilities="] {
        assert!(
            unit.lines().any(|l| l == line),
            "it requests no capability: {line}"
        );
    }
    let scratch = Scratch::new();
    let (image, socket) = (scratch.image("a.raw", 4), scratch.file("a.sock"));
    let status = Command::new("id").arg("-u").output().unwrap();
    if status.stdout != b"0\n" {
        skip::<()>(test, "only root can become a user without privileges");
        return;
    }
    for path in [scratch.file(""), image.clone()] {
        std::os::unix::fs::chown(path, Some(65534), Some(65534)).unwrap();
    }
    // As under systemd: a user that has no capabilities and cannot gain any. The binary is copied,
    // because its directory may not be accessible to other users.
    let binary = scratch.file("weir");
    fs::copy(WEIR, &binary).unwrap();
    let mut command = Command::new("setpriv");
    command.args([
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        "--bounding-set=-all",
    ]);
    command.args(["--inh-caps=-all", "--no-new-privs", &binary, "tapdisk"]);
    command.args(["--image", &image, "--socket", &socket]);
    let tapdisk = Tapdisk::run(command);
    assert_eq!(fs::metadata(&socket).unwrap().uid(), 65534);
    tapdisk.stop();
}

#[test]
fn each_instance_of_the_service_has_a_user_and_a_folder_that_qemu_reaches() {
    let unit = fs::read_to_string(UNIT).unwrap();
    let set = |line: &str| unit.lines().any(|l| l == line);
    assert!(set("DynamicUser=yes") && set("User=wtd-%i") && set("Group=kvm"));
    assert!(set("RuntimeDirectory=weir-tapdisk/%i") && set("RuntimeDirectoryMode=0750"));
    // With it the directory of a dynamic user is below /run/private, which only root can access.
    assert!(!unit.contains("\nRuntimeDirectoryPreserve="));
}

#[test]
fn systemd_accepts_the_unit() {
    let test = "systemd_accepts_the_unit";
    let scratch = Scratch::new();
    let text = fs::read_to_string(UNIT).unwrap();
    // The binary is not installed on the machine where the unit is verified.
    let text = text.replace("/usr/bin/weir", WEIR);
    let unit = scratch.file("weir-tapdisk@web.service");
    fs::write(&unit, text).unwrap();
    match Command::new("systemd-analyze")
        .args(["verify", "--man=no", &unit])
        .output()
    {
        Ok(output) => {
            let printed = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && printed.is_empty(), "{printed}");
        }
        Err(why) => {
            skip::<()>(test, format!("systemd-analyze: {why}"));
        }
    }
}
