//! Access control: tokens from a file, names and roles in certificates.
//!
//! A role has the same syntax in both: `read`, `place` (includes read), `act` (includes place),
//! `agent`, `agent:HOST` for an agent of that host alone, or `vm:NAME`, which reads and places
//! queries over the rows of that VM alone and excludes the others. A line of the token file:
//!
//! ```text
//! # token                                           name   roles
//! 5f0d3c…(48 hexadecimal digits)                    web1   agent:web1
//! 9aa2e4…                                           alice  place
//! ```
//!
//! In a certificate a role is a URI among the subject's alternative names (RFC 5280, 4.2.1.6):
//! `weir:place`, `weir:agent:web1`. The name is the first of its DNS names. Certificate libraries
//! parse these names anyway, so no further parser handles untrusted input.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use subtle::ConstantTimeEq;
use tokio_rustls::rustls::pki_types::CertificateDer;

use crate::{Peer, Principal, Role, WireError};

/// The longest accepted token file, in bytes.
const TOKENS_BYTES_MAX: u64 = 1 << 20;
/// The longest accepted file with a single token, in bytes.
const TOKEN_FILE_BYTES_MAX: u64 = 4096;
/// The largest number of tokens; each is compared with the given one, so that timing reveals
/// nothing.
const TOKENS_MAX: usize = 10_000;
/// The valid lengths of a token in bytes. Sixteen random characters cannot be guessed.
const TOKEN_BYTES: std::ops::RangeInclusive<usize> = 16..=512;
/// The scheme of a URI that names a role in a certificate.
const URI_SCHEME: &str = "weir:";

/// The end of an error about a role.
const ROLES: &str = "the roles are read, place, act, agent, vm:NAME and agent:HOST";

/// The permissions of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) principal: Principal,
    /// The only host that an agent may represent; `None` for any.
    pub(crate) host: Option<String>,
}

impl Grant {
    /// All permissions, for a peer that needs no credentials.
    fn open(peer: &Peer) -> Grant {
        Grant {
            principal: Principal {
                name: peer.name(),
                roles: vec![Role::Read, Role::Place, Role::Act, Role::Agent],
                vm: None,
            },
            host: None,
        }
    }

    /// A grant of the roles `words`.
    fn of<'a>(name: &str, words: impl Iterator<Item = &'a str>) -> Result<Grant, String> {
        let mut grant = Grant {
            principal: Principal {
                name: name.to_owned(),
                roles: Vec::new(),
                vm: None,
            },
            host: None,
        };
        for word in words {
            let role = match word.split_once(':') {
                None if word == "read" => Role::Read,
                None if word == "place" => Role::Place,
                None if word == "act" => Role::Act,
                None if word == "agent" => Role::Agent,
                Some(("agent", host)) if !host.is_empty() && grant.host.is_none() => {
                    grant.host = Some(host.to_owned());
                    Role::Agent
                }
                Some(("vm", vm)) if !vm.is_empty() && grant.principal.vm.is_none() => {
                    grant.principal.vm = Some(vm.to_owned());
                    Role::Place
                }
                _ => {
                    return Err(format!("unknown role `{word}`; {ROLES} (once)"));
                }
            };
            grant.principal.roles.push(role);
        }
        match grant.principal.roles.as_slice() {
            [] => Err(format!("the role is missing; {ROLES}")),
            [_, _, ..] if grant.principal.vm.is_some() => Err(
                "role vm:NAME restricts its owner, so it cannot be combined with other roles"
                    .to_owned(),
            ),
            _ => Ok(grant),
        }
    }

    /// Whether it includes `role`.
    pub(crate) fn allows(&self, role: Role) -> bool {
        self.principal.allows(role)
    }
}

/// A verified certificate.
#[derive(Clone, Debug)]
pub(crate) struct Certified {
    /// The certificate and its intermediates.
    pub(crate) chain: Vec<CertificateDer<'static>>,
    /// The grant of its owner, or why there is none.
    pub(crate) grant: Result<Grant, String>,
}

impl Certified {
    /// Reads a certificate chain; `None` if it is empty.
    pub(crate) fn read(chain: &[CertificateDer<'static>]) -> Option<Certified> {
        Some(Certified {
            grant: granted(chain.first()?),
            chain: chain.to_vec(),
        })
    }
}

fn granted(der: &CertificateDer<'_>) -> Result<Grant, String> {
    let certificate = webpki::EndEntityCert::try_from(der)
        .map_err(|error| format!("the certificate is not readable: {error}"))?;
    let name = certificate.valid_dns_names().next().unwrap_or("?");
    let roles = certificate
        .valid_uri_names()
        .filter_map(|uri| uri.strip_prefix(URI_SCHEME));
    Grant::of(name, roles).map_err(|e| {
        format!(
            "the certificate of `{name}`: {e}; a role is a URI among its names, such as \
                 `weir:read`"
        )
    })
}

/// The credentials of a peer.
#[derive(Clone, Debug)]
pub(crate) struct Credentials {
    pub(crate) peer: Peer,
    /// The header `authorization`.
    pub(crate) authorization: Option<String>,
    /// The grant of the certificate, or why there is none, if a certificate was presented.
    pub(crate) certificate: Option<Result<Grant, String>>,
}

/// The access rules.
#[derive(Debug, Default)]
pub(crate) struct Access {
    /// `None` if tokens are not accepted.
    tokens: Option<Vec<(String, Grant)>>,
    certificates: bool,
    /// Network peers need no credentials. For tests, where no other user is on the host.
    open: bool,
}

impl Access {
    /// Rules with the tokens in file `tokens`, and certificates if the connection's TLS verifies
    /// them.
    pub(crate) fn load(
        tokens: Option<&Path>,
        certificates: bool,
        open: bool,
    ) -> Result<Access, WireError> {
        Ok(Access {
            tokens: tokens.map(read_tokens).transpose()?,
            certificates,
            open,
        })
    }

    /// Whether a peer without credentials is granted everything. The kernel lets only processes of
    /// the socket's user and group connect to a unix socket.
    fn is_open_to(&self, credentials: &Credentials) -> bool {
        let shows_nothing =
            credentials.authorization.is_none() && credentials.certificate.is_none();
        match credentials.peer {
            Peer::Local { .. } => shows_nothing || self.tokens.is_none(),
            Peer::Tcp(_) => self.open && self.tokens.is_none() && !self.certificates,
        }
    }

    /// The grant of `credentials`, or why there is none.
    pub(crate) fn grant(&self, credentials: &Credentials) -> Result<Grant, String> {
        if self.is_open_to(credentials) {
            return Ok(Grant::open(&credentials.peer));
        }
        match (&self.tokens, &credentials.authorization) {
            (Some(tokens), Some(header)) => {
                return token_grant(tokens, header);
            }
            (None, Some(_)) if credentials.certificate.is_none() => {
                return Err("tokens are not accepted, only certificates".to_owned());
            }
            _ => {}
        }
        match &credentials.certificate {
            Some(grant) => grant.clone(),
            None if self.certificates => Err(
                "neither a token (header `authorization: Bearer TOKEN`) nor a certificate was presented"
                    .to_owned(),
            ),
            None => Err("no token was presented (header `authorization: Bearer TOKEN`)".to_owned()),
        }
    }
}

fn token_grant(tokens: &[(String, Grant)], header: &str) -> Result<Grant, String> {
    let scheme = header.get(..7).unwrap_or("");
    if !scheme.eq_ignore_ascii_case("bearer ") {
        return Err("the header is not `authorization: Bearer TOKEN`".to_owned());
    }
    let shown = header[7..].trim().as_bytes();
    // All tokens are compared completely, whichever matches.
    let mut found = None;
    for (token, grant) in tokens {
        if bool::from(token.as_bytes().ct_eq(shown)) {
            found = Some(grant);
        }
    }
    found.cloned().ok_or_else(|| "unknown token".to_owned())
}

/// Reads a file with secrets of at most `bytes_max` bytes.
///
/// # Errors
/// If it cannot be read or is too long, and if other users can read it.
pub fn read_secret(path: &Path, bytes_max: u64) -> Result<String, WireError> {
    let wrong = |why: String| WireError::File {
        path: path.to_owned(),
        why,
    };
    let io = |e: std::io::Error| wrong(e.to_string());
    let file = File::open(path).map_err(io)?;
    let facts = file.metadata().map_err(io)?;
    if !facts.is_file() {
        return Err(wrong("it is not a regular file".to_owned()));
    }
    if facts.mode() & 0o027 != 0 {
        return Err(wrong(format!(
            "it contains secrets, and its mode {:04o} permits other users to read them; use \
             `chmod 600 {}`",
            facts.mode() & 0o7777,
            path.display()
        )));
    }
    let mut text = String::new();
    file.take(bytes_max + 1)
        .read_to_string(&mut text)
        .map_err(io)?;
    match text.len() as u64 > bytes_max {
        true => Err(wrong(format!("it has more than {bytes_max} bytes"))),
        false => Ok(text),
    }
}

/// The token in a file: its first word. A file that other users can read is rejected.
///
/// # Errors
/// If the file cannot be read, is open to others or contains no token.
pub fn read_token(path: &Path) -> Result<String, WireError> {
    let text = read_secret(path, TOKEN_FILE_BYTES_MAX)?;
    let token = text.split_whitespace().next().map(str::to_owned);
    token.ok_or_else(|| WireError::File {
        path: path.to_owned(),
        why: "it must contain a token as a single word".to_owned(),
    })
}

fn read_tokens(path: &Path) -> Result<Vec<(String, Grant)>, WireError> {
    let text = read_secret(path, TOKENS_BYTES_MAX)?;
    parse_tokens(&text).map_err(|why| WireError::File {
        path: path.to_owned(),
        why,
    })
}

fn parse_tokens(text: &str) -> Result<Vec<(String, Grant)>, String> {
    let mut tokens: Vec<(String, Grant)> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let at = |why: String| format!("line {}: {why}", index + 1);
        let words: Vec<&str> = line.split_whitespace().collect();
        let &[token, name, roles] = words.as_slice() else {
            return Err(at("a line is `TOKEN NAME ROLE,ROLE`".to_owned()));
        };
        if !TOKEN_BYTES.contains(&token.len()) {
            return Err(at(format!(
                "a token has {} to {} characters; `openssl rand -hex 24` generates one",
                TOKEN_BYTES.start(),
                TOKEN_BYTES.end()
            )));
        }
        if tokens.iter().any(|(known, _)| known == token) {
            return Err(at("duplicate token".to_owned()));
        }
        if tokens.len() == TOKENS_MAX {
            return Err(at(format!("more than {TOKENS_MAX} tokens")));
        }
        let grant = Grant::of(name, roles.split(',')).map_err(at)?;
        tokens.push((token.to_owned(), grant));
    }
    match tokens.is_empty() {
        true => Err("it contains no token, so no peer could authenticate".to_owned()),
        false => Ok(tokens),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "0123456789abcdef";

    fn shown(authorization: Option<&str>) -> Credentials {
        Credentials {
            peer: Peer::Tcp(([127, 0, 0, 1], 1).into()),
            authorization: authorization.map(str::to_owned),
            certificate: None,
        }
    }

    fn access(lines: &str) -> Access {
        Access {
            tokens: Some(parse_tokens(lines).unwrap()),
            ..Access::default()
        }
    }

    #[test]
    fn a_token_grants_its_name_roles_and_host() {
        let access = access(&format!("# who\n\n{TOKEN} web1 agent:web1,read\n"));
        let grant = access
            .grant(&shown(Some(&format!("Bearer {TOKEN}"))))
            .unwrap();
        assert_eq!(grant.principal.name, "web1");
        assert_eq!(grant.host.as_deref(), Some("web1"));
        assert!(grant.allows(Role::Agent) && grant.allows(Role::Read));
        assert!(!grant.allows(Role::Place));
    }

    #[test]
    fn the_place_role_includes_read() {
        let access = access(&format!("{TOKEN} alice place"));
        let grant = access.grant(&shown(Some(&format!("bearer {TOKEN}"))));
        let grant = grant.unwrap();
        assert!(grant.allows(Role::Read) && !grant.allows(Role::Act));
    }

    #[test]
    fn the_act_role_includes_place_and_read() {
        let grant = Grant::of("alice", ["act"].into_iter()).unwrap();
        assert!([Role::Read, Role::Place, Role::Act].map(|role| grant.allows(role)) == [true; 3]);
        assert!(!grant.allows(Role::Agent));
    }

    #[test]
    fn the_role_of_a_vm_is_restricted_and_stands_alone() {
        let header = format!("bearer {TOKEN}");
        let grant = |roles: &str| {
            let access = access(&format!("{TOKEN} tenant {roles}"));
            access.grant(&shown(Some(&header))).unwrap()
        };
        let tenant = grant("vm:web:1");
        assert_eq!(tenant.principal.vm.as_deref(), Some("web:1"));
        assert!(tenant.allows(Role::Read) && tenant.allows(Role::Place));
        assert!(!tenant.allows(Role::Agent));
        assert_eq!(grant("place").principal.vm, None);
        for roles in [
            "vm:web,place",
            "read,vm:web",
            "agent,vm:web",
            "agent:a,vm:b",
        ] {
            let error = parse_tokens(&format!("{TOKEN} tenant {roles}")).unwrap_err();
            assert!(error.contains("cannot be combined"), "{roles}: {error}");
        }
        for roles in ["vm:", "vm", "vm:a,vm:b", "VM:a"] {
            let error = parse_tokens(&format!("{TOKEN} tenant {roles}")).unwrap_err();
            assert!(error.contains("unknown role"), "{roles}: {error}");
        }
    }

    #[test]
    fn invalid_or_missing_tokens_are_rejected_with_the_reason() {
        let access = access(&format!("{TOKEN} alice place"));
        for (header, why) in [
            (None, "no token was presented"),
            (Some("Basic eHg6eHg="), "is not `authorization: Bearer"),
            (Some("Bearer 0123456789abcdeF"), "unknown token"),
            (Some("Bearer 0123456789abcde"), "unknown token"),
            (Some("Bearer "), "unknown token"),
            (Some("é"), "is not `authorization: Bearer"),
        ] {
            let error = access.grant(&shown(header)).unwrap_err();
            assert!(error.contains(why), "{header:?}: {error}");
        }
    }

    #[test]
    fn only_unix_socket_peers_need_no_credentials() {
        let local = |authorization: Option<&str>| Credentials {
            peer: Peer::Local { uid: 5, pid: 1 },
            ..shown(authorization)
        };
        let closed = Access::default();
        assert!(closed.grant(&shown(None)).is_err());
        let grant = closed.grant(&local(None)).unwrap();
        assert_eq!(grant.principal.name, "uid 5");
        assert!(grant.allows(Role::Agent) && grant.allows(Role::Place));
        // A peer that presents a token has the roles of the token, and no more.
        let tokens = access(&format!("{TOKEN} bob read"));
        let bob = tokens.grant(&local(Some(&format!("Bearer {TOKEN}"))));
        assert!(!bob.unwrap().allows(Role::Place));
        assert!(
            tokens
                .grant(&local(Some("Bearer 0123456789abcdeF")))
                .is_err()
        );
        assert!(tokens.grant(&local(None)).unwrap().allows(Role::Place));
    }

    #[test]
    fn a_malformed_token_file_is_rejected_with_the_line() {
        for (text, why) in [
            ("", "it contains no token"),
            ("short alice place", "line 1: a token has 16"),
            ("# x\n0123456789abcdef alice", "line 2: a line is"),
            ("0123456789abcdef alice root", "unknown role `root`"),
            ("0123456789abcdef alice agent:", "unknown role `agent:`"),
            (
                "0123456789abcdef a agent:x,agent:y",
                "unknown role `agent:y`",
            ),
            (
                "0123456789abcdef a read\n0123456789abcdef b place",
                "line 2: duplicate token",
            ),
        ] {
            let error = parse_tokens(text).unwrap_err();
            assert!(error.contains(why), "{text:?}: {error}");
        }
    }

    #[test]
    fn a_readable_secret_file_is_rejected_with_the_remedy() {
        use std::os::unix::fs::PermissionsExt;
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("tokens");
        std::fs::write(&path, format!("{TOKEN} alice place\n")).unwrap();
        let mode = |mode| {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            Access::load(Some(&path), false, false)
        };
        let error = mode(0o644).unwrap_err().to_string();
        assert!(error.contains("chmod 600"), "{error}");
        assert!(mode(0o640).is_ok());
    }
}
