//! [`Service`]: the requests and responses of a kind of server, and the envelope around them.
//!
//! Incompatible changes of a service increment [`Service::VERSION`]. New requests, new responses
//! and new fields with a default do not: unknown fields are ignored, and an unknown request is
//! answered with [`ErrorCode::Malformed`].

use std::fmt;
use std::io;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::frame;

/// The requests and responses of one kind of server.
pub trait Service {
    /// Its name in the envelope.
    const NAME: &'static str;
    /// Its version in the envelope.
    const VERSION: u32;
    /// Maximum size of a request.
    const REQUEST_BYTES_MAX: usize;
    /// Maximum size of one message of a response.
    const RESPONSE_BYTES_MAX: usize;
    /// A request.
    type Request: Serialize + DeserializeOwned;
    /// A response, or a part of one.
    type Response: Serialize + DeserializeOwned;
}

/// The content of a message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Body<T> {
    /// From the client.
    Request(T),
    /// A part of a response; more follow.
    Part(T),
    /// A response, or its last part.
    Response(T),
    /// The error of a request; or, without a request, the reason why the server disconnects.
    Error(ServiceError),
}

/// An error that a server sends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceError {
    /// Its kind.
    pub code: ErrorCode,
    /// Its text, for the user.
    pub message: String,
}

/// The kinds of errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The message is not one of this protocol and service.
    Malformed,
    /// The message is too long.
    TooLong,
    /// The version of the service is another one.
    UnsupportedVersion,
    /// This user may not connect.
    Forbidden,
    /// The request is wrong: a usage error of the client's user.
    Usage,
    /// The request failed.
    Failed,
    /// The server stops.
    Stopped,
    /// A kind that this version does not have.
    #[serde(other)]
    Other,
}

#[derive(Serialize, Deserialize)]
struct Envelope<T> {
    service: String,
    version: u32,
    body: Body<T>,
}

/// The fields of an envelope that every version has.
#[derive(Deserialize)]
struct Header {
    service: String,
    version: u32,
}

impl ServiceError {
    /// An error of that kind.
    pub fn new(code: ErrorCode, message: impl fmt::Display) -> ServiceError {
        ServiceError {
            code,
            message: message.to_string(),
        }
    }
}

impl fmt::Display for ServiceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// The frame of a message of service `S`.
///
/// # Errors
/// [`io::ErrorKind::FileTooLarge`] if it is longer than `bytes_max`.
pub fn encode<S: Service>(body: Body<impl Serialize>, bytes_max: usize) -> io::Result<Vec<u8>> {
    let envelope = Envelope {
        service: S::NAME.to_owned(),
        version: S::VERSION,
        body,
    };
    frame::encode(&envelope, bytes_max)
}

/// The frame of a request.
///
/// # Errors
/// As [`encode`].
pub fn encode_request<S: Service>(request: &S::Request) -> io::Result<Vec<u8>> {
    encode::<S>(Body::Request(request), S::REQUEST_BYTES_MAX)
}

/// The message in a frame of service `S`.
///
/// # Errors
/// The error, for the sender: it is not JSON, of another service or version, or not a `T`.
pub fn decode<S: Service, T: DeserializeOwned>(frame: &[u8]) -> Result<Body<T>, ServiceError> {
    let malformed = |error: serde_json::Error| {
        let text = format_args!("the message is invalid: {error}");
        ServiceError::new(ErrorCode::Malformed, text)
    };
    let Header { service, version } = serde_json::from_slice(frame).map_err(malformed)?;
    if service != S::NAME {
        let text = format_args!("the message is not one of service `{}`", S::NAME);
        return Err(ServiceError::new(ErrorCode::Malformed, text));
    }
    if version != S::VERSION {
        let text = format_args!(
            "the peer has version {version} of the {} protocol, this weir version {}; \
             use the same weir for both",
            S::NAME,
            S::VERSION
        );
        return Err(ServiceError::new(ErrorCode::UnsupportedVersion, text));
    }
    let envelope: Envelope<T> = serde_json::from_slice(frame).map_err(malformed)?;
    Ok(envelope.body)
}
