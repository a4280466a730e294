//! The status file of a running domain: `<domstatus state=.. pid=..>` around the domain's XML.
//!
//! Sources: formatdomain of libvirt's documentation; `virDomainObjFormat` of
//! src/conf/domain_conf.c; the private parts (node names) of `qemuStorageSourcePrivateDataFormat`.

use roxmltree::{Document, Node, ParsingOptions};
use weir_model::inventory::VmKind;

use crate::inventory::found::{FoundDisk, FoundVm, Layer, Source};

/// Maximum depth of backing images.
const CHAIN_MAX: usize = 64;

/// Maximum number of elements of a file; a larger file is not one of libvirt's.
const NODES_MAX: u32 = 1 << 18;

/// The domain of a status file; `None` if the text is not a status file.
pub fn parse(text: &str) -> Option<FoundVm> {
    let options = ParsingOptions {
        nodes_limit: NODES_MAX,
        ..ParsingOptions::default()
    };
    let document = Document::parse_with_options(text, options).ok()?;
    let status = document.root_element();
    let domain = child(status, "domain")?;
    let devices = child(domain, "devices")?;
    let disks = children(devices, "disk").map(|disk| of_disk(devices, disk));
    let disks: Vec<FoundDisk> = disks.collect();
    let backends = disks.iter().filter_map(|disk| match &disk.source {
        Source::Backend(path) => Some(path.clone()),
        _ => None,
    });
    let shares = children(devices, "filesystem").filter_map(|share| {
        // A virtiofsd that was started externally; libvirt's own has no socket here.
        Some(child(share, "source")?.attribute("socket")?.to_owned())
    });
    let backends = backends.chain(shares).collect();
    Some(FoundVm {
        name: text_of(domain, "name"),
        uuid: text_of(domain, "uuid"),
        state: status.attribute("state").map(String::from),
        pid: status.attribute("pid")?.parse().ok(),
        vcpus: vcpus(domain),
        memory_bytes: memory_bytes(domain),
        disks: Some(disks),
        backends,
        ..FoundVm::new(VmKind::Qemu)
    })
}

fn child<'a>(node: Node<'a, 'a>, name: &str) -> Option<Node<'a, 'a>> {
    node.children().find(|n| n.has_tag_name(name))
}

fn children<'a>(node: Node<'a, 'a>, name: &'a str) -> impl Iterator<Item = Node<'a, 'a>> {
    node.children().filter(move |n| n.has_tag_name(name))
}

fn text_of(node: Node, name: &str) -> Option<String> {
    node.children()
        .find(|n| n.has_tag_name(name))
        .and_then(|n| n.text())
        .map(|text| text.trim().to_owned())
        .filter(|text| !text.is_empty())
}

/// `<vcpu current='2'>4</vcpu>`: 2 of at most 4.
fn vcpus(domain: Node) -> Option<i64> {
    let vcpu = domain.children().find(|n| n.has_tag_name("vcpu"))?;
    let count = vcpu.attribute("current").or(vcpu.text())?;
    count.trim().parse().ok()
}

/// The current memory, otherwise the maximum.
fn memory_bytes(domain: Node) -> Option<i64> {
    let now = domain.children().find(|n| n.has_tag_name("currentMemory"));
    let memory = now.or_else(|| domain.children().find(|n| n.has_tag_name("memory")))?;
    let unit = match memory.attribute("unit").unwrap_or("KiB") {
        "b" | "bytes" => 1,
        "KB" => 1000,
        "k" | "KiB" => 1 << 10,
        "MB" => 1_000_000,
        "M" | "MiB" => 1 << 20,
        "GB" => 1_000_000_000,
        "G" | "GiB" => 1 << 30,
        "TB" => 1_000_000_000_000,
        "T" | "TiB" => 1 << 40,
        _ => return None,
    };
    let amount: i64 = memory.text()?.trim().parse().ok()?;
    amount.checked_mul(unit)
}

fn of_disk<'a>(devices: Node<'a, 'a>, disk: Node<'a, 'a>) -> FoundDisk {
    let attribute = |element: &str, name: &str| {
        let element = child(disk, element)?;
        element.attribute(name).map(String::from)
    };
    let source = source(disk);
    let optical = disk.attribute("device") == Some("cdrom");
    let slice = child(disk, "source")
        .and_then(|s| child(s, "slices"))
        .and_then(|s| child(s, "slice"));
    let slice = |name| slice.and_then(|s| s.attribute(name)?.parse().ok());
    FoundDisk {
        vdisk: attribute("target", "dev").map(|dev| format!("/dev/{dev}")),
        backing: backing(disk),
        format: match source {
            Source::Empty => None,
            _ => attribute("driver", "type"),
        },
        bus: bus(devices, disk, &source),
        source,
        holder: None,
        device: attribute("alias", "name"),
        drive: None,
        node: node_name(disk),
        aio: attribute("driver", "io"),
        direct: attribute("driver", "cache").and_then(|mode| match mode.as_str() {
            "none" | "directsync" => Some(true),
            "writeback" | "writethrough" | "unsafe" => Some(false),
            _ => None,
        }),
        read_only: Some(optical || child(disk, "readonly").is_some()),
        bytes: None,
        offset_bytes: slice("offset").unwrap_or(0),
        size_bytes: slice("size"),
        tapdisk: None,
        control: None,
    }
}

/// The location of the data of a disk, or of a backing image.
fn source(disk: Node) -> Source {
    let Some(source) = disk.children().find(|n| n.has_tag_name("source")) else {
        return Source::Empty;
    };
    let attribute = |name| {
        source
            .attribute(name)
            .filter(|text: &&str| !text.is_empty())
    };
    if let Some(path) = attribute("file").or(attribute("dev")) {
        return match disk.attribute("type") {
            Some("vhostvdpa") => Source::Elsewhere(format!("vdpa:{path}")),
            _ => Source::File(path.to_owned()),
        };
    }
    match disk.attribute("type") {
        Some("vhostuser") => {
            attribute("path").map_or(Source::Unknown, |p| Source::Backend(p.into()))
        }
        Some("network") => {
            let protocol = attribute("protocol").unwrap_or("network");
            Source::Elsewhere(format!(
                "{protocol}:{}",
                attribute("name").unwrap_or_default()
            ))
        }
        Some("nvme") => Source::Elsewhere("nvme:".into()),
        Some("volume") => Source::Unknown,
        _ => Source::Empty,
    }
}

/// The backing images, outermost first.
fn backing<'a>(disk: Node<'a, 'a>) -> Vec<Layer> {
    let mut layers = Vec::new();
    let mut above = disk;
    while let Some(store) = child(above, "backingStore").filter(|_| layers.len() < CHAIN_MAX) {
        if let Source::File(path) = source(store) {
            let format = child(store, "format").and_then(|f| f.attribute("type"));
            layers.push(Layer {
                path,
                format: format.map(String::from),
            });
        }
        above = store;
    }
    layers
}

/// The bus of a disk, by weir's names.
fn bus<'a>(devices: Node<'a, 'a>, disk: Node<'a, 'a>, source: &Source) -> Option<String> {
    let bus = child(disk, "target")?.attribute("bus")?;
    let controller = child(disk, "address").and_then(|a| a.attribute("controller"));
    let virtio = || {
        let mut of_disk = children(devices, "controller").filter(|c| {
            c.attribute("type") == Some("scsi")
                && c.attribute("index") == controller.or(c.attribute("index"))
        });
        of_disk.any(|c| {
            c.attribute("model")
                .is_some_and(|m| m.starts_with("virtio"))
        })
    };
    let bus = match bus {
        "virtio" if matches!(source, Source::Backend(_)) => "vhost-user-blk",
        "virtio" => "virtio-blk",
        "scsi" if virtio() => "virtio-scsi",
        other => other,
    };
    Some(bus.to_owned())
}

/// The node with the image's format, to which the device is attached.
fn node_name<'a>(disk: Node<'a, 'a>) -> Option<String> {
    let private = child(child(disk, "source")?, "privateData")?;
    let mut names = children(child(private, "nodenames")?, "nodename");
    let format = names.find(|name| name.attribute("type") == Some("format"))?;
    format.attribute("name").map(String::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STATUS: &str = "<!-- made by libvirt -->
<domstatus state='paused' reason='user' pid='4711'>
  <monitor path='/var/lib/libvirt/qemu/domain-1-web/monitor.sock' type='unix'/>
  <domain type='kvm' id='1'>
    <name>web</name>
    <uuid>7a5d0b4c-0000-4000-8000-000000000001</uuid>
    <memory unit='KiB'>2097152</memory>
    <currentMemory unit='MiB'>1024</currentMemory>
    <vcpu placement='static' current='2'>4</vcpu>
    <devices>
      <disk type='file' device='disk'>
        <driver name='qemu' type='qcow2' cache='none' io='native' iothread='1'/>
        <source file='/images/web &amp; more.qcow2' index='1'>
          <privateData>
            <nodenames>
              <nodename type='storage' name='libvirt-1-storage'/>
              <nodename type='format' name='libvirt-1-format'/>
            </nodenames>
          </privateData>
        </source>
        <backingStore type='file' index='2'>
          <format type='qcow2'/>
          <source file='/images/base.qcow2'/>
          <backingStore type='block'>
            <format type='raw'/>
            <source dev='/dev/vg/base'/>
            <backingStore/>
          </backingStore>
        </backingStore>
        <target dev='vda' bus='virtio'/>
        <alias name='virtio-disk0'/>
      </disk>
      <disk type='block' device='disk'>
        <driver name='qemu' type='raw'/>
        <source dev='/dev/vg/data'><slices><slice type='storage' offset='4096' size='8192'/></slices></source>
        <target dev='sda' bus='scsi'/>
        <alias name='scsi0-0-0-0'/>
        <address type='drive' controller='0' bus='0' target='0' unit='0'/>
      </disk>
      <disk type='file' device='cdrom'>
        <driver name='qemu' type='raw'/>
        <target dev='sdb' bus='sata'/>
        <readonly/>
      </disk>
      <disk type='vhostuser' device='disk'>
        <driver name='qemu' type='raw'/>
        <source type='unix' path='/run/tap.sock'/>
        <target dev='vdb' bus='virtio'/>
      </disk>
      <disk type='network' device='disk'>
        <driver name='qemu' type='raw'/>
        <source protocol='rbd' name='pool/image'><host name='mon1' port='6789'/></source>
        <target dev='vdc' bus='virtio'/>
      </disk>
      <controller type='scsi' index='0' model='virtio-scsi'/>
    </devices>
  </domain>
</domstatus>";

    #[test]
    fn a_status_file_contains_the_domain_and_its_disks() {
        let vm = parse(STATUS).unwrap();
        assert_eq!((vm.name.as_deref(), vm.pid), (Some("web"), Some(4711)));
        assert_eq!(vm.state.as_deref(), Some("paused"));
        assert_eq!((vm.vcpus, vm.memory_bytes), (Some(2), Some(1 << 30)));
        assert_eq!(vm.backends, ["/run/tap.sock"]);
        let disks = vm.disks.unwrap();
        let bus = |d: &FoundDisk| (d.vdisk.clone().unwrap(), d.bus.clone().unwrap());
        let buses: Vec<(String, String)> = disks.iter().map(bus).collect();
        let expected = [
            ("/dev/vda", "virtio-blk"),
            ("/dev/sda", "virtio-scsi"),
            ("/dev/sdb", "sata"),
            ("/dev/vdb", "vhost-user-blk"),
            ("/dev/vdc", "virtio-blk"),
        ];
        assert_eq!(buses, expected.map(|(a, b)| (a.to_owned(), b.to_owned())));
        let sources: Vec<&Source> = disks.iter().map(|d| &d.source).collect();
        assert_eq!(*sources[0], Source::File("/images/web & more.qcow2".into()));
        assert_eq!(*sources[1], Source::File("/dev/vg/data".into()));
        assert_eq!(*sources[2], Source::Empty);
        assert_eq!(*sources[4], Source::Elsewhere("rbd:pool/image".into()));
        assert_eq!(disks[0].node.as_deref(), Some("libvirt-1-format"));
        assert_eq!(disks[0].device.as_deref(), Some("virtio-disk0"));
        assert_eq!(
            (disks[0].aio.as_deref(), disks[0].direct),
            (Some("native"), Some(true))
        );
        let layers: Vec<&str> = disks[0].backing.iter().map(|l| l.path.as_str()).collect();
        assert_eq!(layers, ["/images/base.qcow2", "/dev/vg/base"]);
        assert_eq!(
            (disks[1].offset_bytes, disks[1].size_bytes),
            (4096, Some(8192))
        );
        assert_eq!(disks[2].read_only, Some(true));
    }

    #[test]
    fn a_definition_without_a_process_is_no_running_domain() {
        assert_eq!(parse("<domain><name>x</name><devices/></domain>"), None);
        assert_eq!(parse(""), None);
        assert_eq!(parse(&STATUS[..STATUS.len() / 2]), None);
    }

    proptest! {
        #[test]
        fn no_file_is_too_strange(
            at in 0..STATUS.len(), len in 0usize..200, more in "[<>/='a-z0-9&; ]{0,40}"
        ) {
            let mut text = STATUS.to_owned();
            let end = (at + len).min(text.len());
            text.replace_range(at..end, &more);
            parse(&text);
        }
    }
}
