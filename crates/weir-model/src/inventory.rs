//! The objects of a host: VMs, their disks and the block devices, as rows of the relations `vms`,
//! `disks` and `devices`.

use serde::{Deserialize, Serialize};

use crate::{Alias, Batch, Column, ColumnBuilder, Field, Nanos, Schema, Symbol, Type, Unit, Value};

/// A VM, a container, or a process that was declared to be one: a row of relation `vms`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vm {
    /// The name of the VM, as in column `vm` of an event. Unique on a host.
    pub name: Symbol,
    /// Its UUID or container id.
    pub uuid: Option<Symbol>,
    /// Its type.
    pub kind: VmKind,
    /// The name of the inventory that reported it.
    pub origin: Symbol,
    /// `running`, `paused` and others, as named by its inventory.
    pub state: Option<Symbol>,
    /// Its process; of a container the first one.
    pub pid: Option<i64>,
    /// The path of its cgroup below the root of the hierarchy that block I/O is charged to.
    pub cgroup: Option<Symbol>,
    /// Virtual processors.
    pub vcpus: Option<i64>,
    /// Memory, bytes.
    pub memory_bytes: Option<i64>,
    /// When its process was started.
    pub started: Option<Nanos>,
    /// The user that runs the process.
    pub uid: Option<i64>,
}

impl Vm {
    /// A VM without further attributes.
    pub fn new(name: &str, kind: VmKind, origin: &str) -> Vm {
        Vm {
            name: Symbol::new(name),
            uuid: None,
            kind,
            origin: Symbol::new(origin),
            state: None,
            pid: None,
            cgroup: None,
            vcpus: None,
            memory_bytes: None,
            started: None,
            uid: None,
        }
    }
}

/// The type of a row of `vms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum VmKind {
    /// QEMU, with or without KVM.
    Qemu,
    /// Cloud Hypervisor.
    CloudHypervisor,
    /// Firecracker.
    Firecracker,
    /// A container, or a pod of them.
    Container,
    /// A process that the user declared to be a VM.
    Process,
}

/// A virtual disk: a row of relation `disks`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disk {
    /// The VM of the disk.
    pub vm: Symbol,
    /// The disk as the VM sees it, such as `/dev/vda`. Unique in a VM.
    pub vdisk: Symbol,
    /// The file or device that contains its data, the active layer if there are several.
    pub image: Option<Symbol>,
    /// The whole block device that contains the image, or is it.
    pub pdisk: Option<Symbol>,
    /// `raw`, `qcow2`, ...
    pub format: Option<Symbol>,
    /// The device model in the VM: `virtio-blk`, `virtio-scsi`, `ide`, `nvme`, ...
    pub bus: Option<Symbol>,
    /// The name of the device in its VM's configuration, such as `disk0`.
    pub device: Option<Symbol>,
    /// The name of QEMU's block node.
    pub node: Option<Symbol>,
    /// `threads`, `native`, `io_uring`.
    pub aio: Option<Symbol>,
    /// Whether the host's page cache is bypassed.
    pub direct: Option<bool>,
    /// Whether the VM may not write.
    pub read_only: Option<bool>,
    /// The size in the VM, bytes.
    pub bytes: Option<i64>,
    /// How an event on the host is attributed to this disk.
    pub found_by: FoundBy,
    /// The name of the inventory that reported it.
    pub origin: Symbol,
}

impl Disk {
    /// A disk without further attributes.
    pub fn new(vm: &str, vdisk: &str, found_by: FoundBy, origin: &str) -> Disk {
        Disk {
            vm: Symbol::new(vm),
            vdisk: Symbol::new(vdisk),
            image: None,
            pdisk: None,
            format: None,
            bus: None,
            device: None,
            node: None,
            aio: None,
            direct: None,
            read_only: None,
            bytes: None,
            found_by,
            origin: Symbol::new(origin),
        }
    }
}

/// How an event on the host is attributed to a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FoundBy {
    /// The image is a block device: exact, sector by sector.
    Device,
    /// By the extents of the image's file: exact if the file system reports them.
    Extents,
    /// By the process alone, since the location of the image is unknown.
    Process,
    /// Not at all: its I/O does not pass through this host's block devices.
    Nothing,
}

/// A block device and one below it: a row of relation `devices`. A device on several others has
/// several rows, a disk at the bottom one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockDevice {
    /// Its path, such as `/dev/sda3`.
    pub device: Symbol,
    /// `disk`, `part`, `dm`, `md`, `loop`, `mpath`, `zram`, ...
    pub kind: Symbol,
    /// The device below, of which it is a partition or on which it is built; `None` at the bottom.
    pub below: Option<Symbol>,
    /// The whole disk: itself, or that of which it is a partition.
    pub disk: Symbol,
    /// Major number.
    pub major: i64,
    /// Minor number.
    pub minor: i64,
    /// First sector on its disk.
    pub start_sectors: Option<i64>,
    /// Size, bytes.
    pub bytes: i64,
    /// A persistent name in /dev/disk/by-id.
    pub by_id: Option<Symbol>,
    /// The name in /dev/mapper, of a logical volume `vg/lv`.
    pub name: Option<Symbol>,
    /// The file under a loop device.
    pub file: Option<Symbol>,
    /// Model, of a disk.
    pub model: Option<Symbol>,
    /// The I/O scheduler in use.
    pub scheduler: Option<Symbol>,
    /// Whether it is rotational.
    pub rotational: Option<bool>,
    /// Whether it is the lowest device that this host can observe.
    pub leaf: bool,
}

impl VmKind {
    /// `qemu`, `container`, ...
    pub fn as_str(self) -> &'static str {
        match self {
            VmKind::Qemu => "qemu",
            VmKind::CloudHypervisor => "cloud-hypervisor",
            VmKind::Firecracker => "firecracker",
            VmKind::Container => "container",
            VmKind::Process => "process",
        }
    }
}

impl FoundBy {
    /// `device`, `extents`, `process`; `None` when it is not found.
    pub fn as_str(self) -> Option<&'static str> {
        match self {
            FoundBy::Device => Some("device"),
            FoundBy::Extents => Some("extents"),
            FoundBy::Process => Some("process"),
            FoundBy::Nothing => None,
        }
    }
}

/// A column of an inventory's relation and the function that reads it from a row.
pub type InventoryColumn<R> = (Field, fn(&R) -> Value);

/// A row of an inventory's relation.
pub trait Row: Clone + PartialEq + Sized + 'static {
    /// The relation's name.
    const RELATION: &'static str;

    /// The relation's columns, in order, but for the last one, `host`.
    fn columns() -> Vec<InventoryColumn<Self>>;

    /// The host of the row, where `here` is the reporting host.
    fn host(&self, here: Option<Symbol>) -> Option<Symbol> {
        here
    }

    /// The relation's schema.
    fn schema() -> Schema {
        let own = Self::columns().into_iter().map(|(field, _)| field);
        let host = Field::new("host", Type::Text)
            .nullable()
            .doc("the host, as in column host of IO")
            .aliases(&[Alias::same("IP")]);
        Schema::new(own.chain([host]).collect())
    }
}

/// The changes of a relation reported by `host`, at instant `ts`: retractions, then insertions.
pub fn changes<R: Row>(ts: Nanos, host: Option<Symbol>, gone: &[R], come: &[R]) -> Batch {
    let rows = gone.len() + come.len();
    let column = |(field, get): InventoryColumn<R>| {
        let mut builder = ColumnBuilder::new(field.ty, rows);
        for row in gone.iter().chain(come) {
            builder.push(get(row));
        }
        builder.finish()
    };
    let mut columns: Vec<Column> = R::columns().into_iter().map(column).collect();
    let hosts = gone.iter().chain(come).map(|row| text(row.host(host)));
    columns.push(Column::from_values(Type::Text, hosts));
    let mut weights = vec![-1; gone.len()];
    weights.resize(rows, 1);
    Batch::deltas(vec![ts; rows], weights, columns)
}

fn text(value: Option<Symbol>) -> Value {
    value.map_or(Value::Null, Value::Text)
}

fn int(value: Option<i64>) -> Value {
    value.map_or(Value::Null, Value::Int)
}

fn flag(value: Option<bool>) -> Value {
    value.map_or(Value::Null, Value::Bool)
}

fn column(name: &str, ty: Type, doc: &str) -> Field {
    Field::new(name, ty).doc(doc)
}

impl Row for Vm {
    const RELATION: &'static str = "vms";

    fn columns() -> Vec<InventoryColumn<Vm>> {
        use Type::{Int, Text, Time};
        vec![
            (column("vm", Text, "the name, as in column vm of IO"), |v| {
                Value::Text(v.name)
            }),
            (
                column(
                    "kind",
                    Text,
                    "qemu, cloud-hypervisor, firecracker, container or process",
                ),
                |v| Value::text(v.kind.as_str()),
            ),
            (
                column(
                    "state",
                    Text,
                    "running, paused, ... as reported by its origin",
                )
                .nullable(),
                |v| text(v.state),
            ),
            (
                column(
                    "pid",
                    Int,
                    "the process of the VM; for a container, its first process",
                )
                .nullable(),
                |v| int(v.pid),
            ),
            (
                column("uid", Int, "the user ID of that process").nullable(),
                |v| int(v.uid),
            ),
            (
                column("uuid", Text, "the UUID, or the ID of a container").nullable(),
                |v| text(v.uuid),
            ),
            (
                column("cgroup", Text, "the path of the cgroup").nullable(),
                |v| text(v.cgroup),
            ),
            (
                column("vcpus", Int, "the number of virtual processors").nullable(),
                |v| int(v.vcpus),
            ),
            (
                column("memory", Int, "the memory of the VM")
                    .unit(Unit::Bytes)
                    .nullable(),
                |v| int(v.memory_bytes),
            ),
            (
                column("started", Time, "the start time of its process")
                    .unit(Unit::Nanoseconds)
                    .nullable(),
                |v| int(v.started),
            ),
            (
                column(
                    "origin",
                    Text,
                    "the inventory that found it: libvirt, qemu, ...",
                ),
                |v| Value::Text(v.origin),
            ),
        ]
    }
}

impl Row for Disk {
    const RELATION: &'static str = "disks";

    fn columns() -> Vec<InventoryColumn<Disk>> {
        use Type::{Bool, Int, Text};
        vec![
            (column("vm", Text, "the VM of the disk"), |d| {
                Value::Text(d.vm)
            }),
            (
                column(
                    "vdisk",
                    Text,
                    "the name of the disk in the VM, as in column vdisk of IO",
                ),
                |d| Value::Text(d.vdisk),
            ),
            (
                column(
                    "image",
                    Text,
                    "the file or device with its data; the active layer if \
                        there are several",
                )
                .nullable(),
                |d| text(d.image),
            ),
            (
                column(
                    "pdisk",
                    Text,
                    "the whole device of the host on which the image is \
                        stored",
                )
                .nullable(),
                |d| text(d.pdisk),
            ),
            (column("format", Text, "raw, qcow2, ...").nullable(), |d| {
                text(d.format)
            }),
            (
                column("bus", Text, "virtio-blk, virtio-scsi, ide, nvme, ...").nullable(),
                |d| text(d.bus),
            ),
            (
                column(
                    "device",
                    Text,
                    "the name of the device in the VM's configuration",
                )
                .nullable(),
                |d| text(d.device),
            ),
            (
                column("node", Text, "the name of QEMU's block node").nullable(),
                |d| text(d.node),
            ),
            (
                column("aio", Text, "threads, native or io_uring").nullable(),
                |d| text(d.aio),
            ),
            (
                column("direct", Bool, "true if the host's page cache is bypassed").nullable(),
                |d| flag(d.direct),
            ),
            (
                column("read_only", Bool, "true if the VM cannot write").nullable(),
                |d| flag(d.read_only),
            ),
            (
                column("bytes", Int, "the size for the VM")
                    .unit(Unit::Bytes)
                    .nullable(),
                |d| int(d.bytes),
            ),
            (
                column(
                    "found_by",
                    Text,
                    "how the host's I/O is attributed to it: device, \
                        extents, process; NULL if it is not",
                )
                .nullable(),
                |d| d.found_by.as_str().map_or(Value::Null, Value::text),
            ),
            (
                column(
                    "origin",
                    Text,
                    "the inventory that found it: libvirt, qemu, ...",
                ),
                |d| Value::Text(d.origin),
            ),
        ]
    }
}

impl Row for BlockDevice {
    const RELATION: &'static str = "devices";

    fn columns() -> Vec<InventoryColumn<BlockDevice>> {
        use Type::{Bool, Int, Text};
        vec![
            (
                column(
                    "device",
                    Text,
                    "the path, such as /dev/sda3, as in column pdisk of IO",
                ),
                |d| Value::Text(d.device),
            ),
            (
                column("kind", Text, "disk, part, dm, md, loop, mpath, zram, ..."),
                |d| Value::Text(d.kind),
            ),
            (
                column(
                    "below",
                    Text,
                    "the device of which it is a part or on which it is built, one row for each; \
                     NULL for a physical disk",
                )
                .nullable(),
                |d| text(d.below),
            ),
            (
                column(
                    "disk",
                    Text,
                    "the whole disk: the device itself, or the disk of the partition",
                ),
                |d| Value::Text(d.disk),
            ),
            (column("major", Int, "major number"), |d| {
                Value::Int(d.major)
            }),
            (column("minor", Int, "minor number"), |d| {
                Value::Int(d.minor)
            }),
            (
                column("start", Int, "the first sector of a partition on its disk")
                    .unit(Unit::Sectors)
                    .nullable(),
                |d| int(d.start_sectors),
            ),
            (column("bytes", Int, "size").unit(Unit::Bytes), |d| {
                Value::Int(d.bytes)
            }),
            (
                column("by_id", Text, "a persistent name in /dev/disk/by-id").nullable(),
                |d| text(d.by_id),
            ),
            (
                column(
                    "name",
                    Text,
                    "the device mapper's name; vg/lv for a logical volume",
                )
                .nullable(),
                |d| text(d.name),
            ),
            (
                column("file", Text, "the file of a loop device").nullable(),
                |d| text(d.file),
            ),
            (
                column("model", Text, "the model of the disk").nullable(),
                |d| text(d.model),
            ),
            (
                column("scheduler", Text, "the I/O scheduler in use").nullable(),
                |d| text(d.scheduler),
            ),
            (
                column("rotational", Bool, "true for a rotating disk").nullable(),
                |d| flag(d.rotational),
            ),
            (
                column(
                    "leaf",
                    Bool,
                    "true if no other device of this host carries out its I/O",
                ),
                |d| Value::Bool(d.leaf),
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_comes_first() {
        let disk = |bytes| BlockDevice {
            device: Symbol::new("/dev/sda"),
            kind: Symbol::new("disk"),
            below: None,
            disk: Symbol::new("/dev/sda"),
            major: 8,
            minor: 0,
            start_sectors: None,
            bytes,
            by_id: None,
            name: None,
            file: None,
            model: None,
            scheduler: None,
            rotational: Some(true),
            leaf: true,
        };
        let host = Some(Symbol::new("earth"));
        let batch = changes(7, host, &[disk(512)], &[disk(1024)]);
        let bytes = BlockDevice::schema().index("bytes");
        assert_eq!((batch.weight(0), batch.weight(1)), (-1, 1));
        assert_eq!(batch.columns[bytes].value(0), Value::Int(512));
        assert_eq!(batch.columns[bytes].value(1), Value::Int(1024));
        let host = BlockDevice::schema().index("host");
        assert_eq!(batch.columns[host].value(1), Value::text("earth"));
        assert_eq!(batch.ts[..], [7, 7]);
    }
}
