//! Containers and pods, from the cgroups that their engines create. Names are read from the
//! engines' state files where those are readable, otherwise the id is used.
//!
//! Shapes of paths:
//!
//! * `/docker/ID` and `/system.slice/docker-ID.scope`: Docker
//! * `cri-containerd-ID.scope`, `crio-ID.scope` and `/kubepods/../podUID/ID`: Kubernetes
//! * `libpod-ID.scope` and `/libpod_parent/libpod-ID`: Podman
//! * `/lxc/NAME` and `/lxc.payload.NAME`: LXC, Incus, Proxmox
//! * `machine-NAME.scope` and `systemd-nspawn@NAME.service`: systemd-nspawn

use std::collections::BTreeMap;

use serde_json::Value;
use weir_model::inventory::VmKind;

use super::found::FoundVm;
use super::host::Host;
use super::process::Process;
use super::{Inventory, Scene};

/// Containers of any engine.
pub(super) static INVENTORY: Inventory = Inventory {
    name: "containers",
    programs: |_| false,
    concerns: |process, _| container_of(process).is_some(),
    look,
};

/// Characters of the abbreviated id, as engines display it.
const SHORT_ID: usize = 12;

/// A container, identified from its cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Container {
    /// The container's cgroup, not one nested in it.
    cgroup: String,
    /// Its id or its name.
    id: String,
    engine: Engine,
}

/// The engine of a container, as far as needed to find its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Engine {
    Docker,
    /// Any engine under Kubernetes.
    Kubernetes,
    Podman,
    /// The id is a name.
    Named,
}

fn look(scene: &Scene) -> Vec<FoundVm> {
    // The processes of each container, to find the oldest.
    let mut found: BTreeMap<String, (Container, Vec<&Process>)> = BTreeMap::new();
    for process in scene.processes.all() {
        if let Some(container) = container_of(process) {
            let key = container.cgroup.clone();
            found
                .entry(key)
                .or_insert((container, Vec::new()))
                .1
                .push(process);
        }
    }
    let pods = match found.values().any(|(c, _)| c.engine == Engine::Kubernetes) {
        true => pods(scene.host),
        false => BTreeMap::new(),
    };
    let vm = |(container, processes): (Container, Vec<&Process>)| {
        let first = processes.iter().min_by_key(|p| (p.start_ticks, p.pid));
        let name = name_of(scene.host, &container, &pods);
        FoundVm {
            name: Some(name),
            uuid: (container.engine != Engine::Named).then(|| container.id.clone()),
            pid: first.map(|p| p.pid),
            state: Some("running".into()),
            cgroup: Some(container.cgroup),
            ..FoundVm::new(VmKind::Container)
        }
    };
    found.into_values().map(vm).collect()
}

fn container_of(process: &Process) -> Option<Container> {
    container(process.cgroup?.as_str())
}

/// The innermost container in a cgroup's path.
fn container(path: &str) -> Option<Container> {
    let parts: Vec<&str> = path.split('/').collect();
    let mut found = None;
    for (at, part) in parts.iter().enumerate() {
        let above = if at == 0 { "" } else { parts[at - 1] };
        if let Some((id, engine)) = part_of(part, above, &parts[..at]) {
            found = Some(Container {
                cgroup: parts[..=at].join("/"),
                id,
                engine,
            });
        }
    }
    found
}

/// The id in one component of a path, and its engine.
fn part_of(part: &str, above: &str, before: &[&str]) -> Option<(String, Engine)> {
    let in_pod = before.iter().any(|part| part.starts_with("kubepods"));
    let scope = part.strip_suffix(".scope");
    if let Some((prefix, id)) = scope
        .and_then(|s| s.rsplit_once('-'))
        .filter(|(_, id)| is_id(id))
    {
        let engine = match prefix {
            _ if in_pod => Engine::Kubernetes,
            "docker" => Engine::Docker,
            "libpod" | "libpod-payload" => Engine::Podman,
            "cri-containerd" | "crio" | "nerdctl" => Engine::Kubernetes,
            _ => return None,
        };
        return Some((id.to_owned(), engine));
    }
    if is_id(part) {
        let engine = match above {
            _ if in_pod => Engine::Kubernetes,
            "docker" => Engine::Docker,
            "default" | "k8s.io" | "moby" => Engine::Kubernetes,
            _ => return None,
        };
        return Some((part.to_owned(), engine));
    }
    if let Some(id) = part.strip_prefix("libpod-").filter(|id| is_id(id)) {
        return Some((id.to_owned(), Engine::Podman));
    }
    let nspawn = || {
        let unit = part.strip_prefix("systemd-nspawn@")?;
        unit.strip_suffix(".service")
    };
    let machine = || scope?.strip_prefix("machine-");
    let lxc = || match above {
        "lxc" | "lxc.payload" => Some(part),
        _ => part.strip_prefix("lxc.payload."),
    };
    let named = nspawn().or_else(machine).or_else(lxc)?;
    // libvirt registers VMs as machines too, as `qemu-1-web`; they are not containers.
    let name = unescape(named);
    let is_vm = name.starts_with("qemu-") || part == "ns" || name.is_empty();
    (!is_vm).then_some((name, Engine::Named))
}

/// 64 hexadecimal digits.
fn is_id(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// systemd writes `\x2d` for a dash inside a name (systemd-escape(1)).
fn unescape(text: &str) -> String {
    let mut parts = text.split("\\x");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part
            .get(..2)
            .and_then(|code| u8::from_str_radix(code, 16).ok());
        match code.filter(u8::is_ascii) {
            Some(byte) => {
                plain.push(char::from(byte));
                plain += &part[2..];
            }
            None => plain = plain + "\\x" + part,
        }
    }
    plain
}

/// The container's configured name, otherwise the abbreviated id.
fn name_of(host: &Host, container: &Container, pods: &BTreeMap<String, String>) -> String {
    let id = container.id.as_str();
    let named = match container.engine {
        Engine::Named => return id.to_owned(),
        Engine::Docker => docker_name(host, id),
        Engine::Kubernetes => pods.get(id).cloned(),
        Engine::Podman => podman_name(host, id),
    };
    named.unwrap_or_else(|| id[..SHORT_ID].to_owned())
}

fn docker_name(host: &Host, id: &str) -> Option<String> {
    let path = format!("/var/lib/docker/containers/{id}/config.v2.json");
    let text = host.text_of(path, "Docker's state in /var/lib/docker")?;
    let config: Value = serde_json::from_str(&text).ok()?;
    let name = config.get("Name")?.as_str()?.trim_start_matches('/');
    (!name.is_empty()).then(|| name.to_owned())
}

fn podman_name(host: &Host, id: &str) -> Option<String> {
    let lists = [
        "/var/lib/containers/storage/overlay-containers/containers.json",
        "/run/containers/storage/overlay-containers/volatile-containers.json",
    ];
    lists.iter().find_map(|list| {
        let text = host.text_of(list, "Podman's state in /var/lib/containers")?;
        let list: Value = serde_json::from_str(&text).ok()?;
        let of_id = |c: &&Value| c.get("id").and_then(Value::as_str) == Some(id);
        let container = list.as_array()?.iter().find(of_id)?;
        let name = container.get("names")?.as_array()?.first()?.as_str()?;
        Some(name.to_owned())
    })
}

/// The names of Kubernetes' containers by id, as `namespace/pod/container`: kubelet creates links
/// to their logs as `POD_NAMESPACE_CONTAINER-ID.log`.
fn pods(host: &Host) -> BTreeMap<String, String> {
    let logs = host.names_of(
        "/var/log/containers",
        "the pods' names in /var/log/containers",
    );
    let named = logs.iter().filter_map(|log| {
        let (names, id) = log.strip_suffix(".log")?.rsplit_once('-')?;
        let mut names = names.split('_');
        let (pod, namespace, container) = (names.next()?, names.next()?, names.next()?);
        Some((id.to_owned(), format!("{namespace}/{pod}/{container}")))
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn each_engine_has_its_own_paths() {
        let found = |path: &str| {
            let path = path.replace("ID", ID);
            container(&path).map(|c| (c.id.replace(ID, "ID"), c.engine, c.cgroup.replace(ID, "ID")))
        };
        let is = |path: &str, id: &str, engine, cgroup: &str| {
            assert_eq!(
                found(path),
                Some((id.into(), engine, cgroup.into())),
                "{path}"
            );
        };
        is("/docker/ID", "ID", Engine::Docker, "/docker/ID");
        is("/docker/ID/inner", "ID", Engine::Docker, "/docker/ID");
        is(
            "/system.slice/docker-ID.scope",
            "ID",
            Engine::Docker,
            "/system.slice/docker-ID.scope",
        );
        is(
            "/kubepods/burstable/pod1-2/ID",
            "ID",
            Engine::Kubernetes,
            "/kubepods/burstable/pod1-2/ID",
        );
        let pod = "/kubepods.slice/kubepods-pod1.slice/cri-containerd-ID.scope";
        is(pod, "ID", Engine::Kubernetes, pod);
        let podman = "/machine.slice/libpod-ID.scope/container";
        is(
            podman,
            "ID",
            Engine::Podman,
            "/machine.slice/libpod-ID.scope",
        );
        is(
            "/libpod_parent/libpod-ID",
            "ID",
            Engine::Podman,
            "/libpod_parent/libpod-ID",
        );
        is("/lxc/101/ns/init.scope", "101", Engine::Named, "/lxc/101");
        is(
            "/lxc.payload.web/system.slice",
            "web",
            Engine::Named,
            "/lxc.payload.web",
        );
        is(
            r"/machine.slice/machine-my\x2dbox.scope/payload",
            "my-box",
            Engine::Named,
            r"/machine.slice/machine-my\x2dbox.scope",
        );
        let unit = "/machine.slice/systemd-nspawn@web.service";
        is(unit, "web", Engine::Named, unit);
        for other in [
            "/",
            "",
            "/user.slice/user-0.slice/session-1.scope",
            "/system.slice/docker.service",
            r"/machine.slice/machine-qemu\x2d1\x2dweb.scope/libvirt",
            "/machine/qemu-1-web.libvirt-qemu",
        ] {
            assert_eq!(found(other), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn no_path_is_too_strange(path in r"[/a-f0-9.\\x@é-]{0,90}") {
            container(&path);
            unescape(&path);
        }
    }
}
