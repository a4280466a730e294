//! [`FromMonitor`]: messages of the monitor to an agent.

use arrow_flight::FlightData;
use prost::Message;

use super::{
    ACTIONS_MAX, CHANNELS_MAX, ChannelId, DOWN_BYTES_MAX, FRAGMENT_BYTES_MAX,
    HEARTBEAT_INTERVAL_NS, NAME_BYTES_MAX, Received, VERSION, Version, at_most, instant, read,
};
use crate::error::Malformed;
use crate::proto::from_monitor::Body;
use crate::proto::{AlertAction, FromMonitor, StartChannel, Welcome};

impl FromMonitor {
    /// Decodes a message and checks it against every bound.
    pub fn read(data: &FlightData) -> Result<Received<FromMonitor>, Malformed> {
        let received: Received<FromMonitor> =
            read(&data.app_metadata, DOWN_BYTES_MAX, "message of the monitor")?;
        match &received.message.body {
            Some(Body::Welcome(welcome)) => {
                at_most("welcome: channels", welcome.channels.len(), CHANNELS_MAX)?;
                heartbeat(welcome.heartbeat_interval_ns)?;
            }
            Some(Body::Start(start)) => {
                let bytes = start.fragment.len();
                at_most("start: bytes of a fragment", bytes, FRAGMENT_BYTES_MAX)?;
            }
            Some(Body::HeartbeatInterval(ns)) => heartbeat(*ns)?,
            Some(Body::Actions(actions)) => {
                at_most("actions", actions.actions.len(), ACTIONS_MAX)?;
                actions.actions.iter().try_for_each(AlertAction::check)?;
            }
            _ => {}
        }
        Ok(received)
    }

    /// Encodes a message.
    pub fn data(body: Body) -> FlightData {
        let message = FromMonitor { body: Some(body) };
        FlightData {
            app_metadata: message.encode_to_vec().into(),
            ..FlightData::default()
        }
    }

    /// Encodes the first message to an agent, with the version of this program.
    pub fn welcome(welcome: Welcome) -> FlightData {
        FromMonitor::data(Body::Welcome(Welcome {
            version_major: VERSION.major,
            version_minor: VERSION.minor,
            ..welcome
        }))
    }
}

impl Body {
    /// Run this fragment.
    pub fn start(channel: ChannelId, fragment: Vec<u8>) -> Body {
        let channel = channel.0;
        Body::Start(StartChannel { channel, fragment })
    }
}

impl Welcome {
    /// The version that both sides use.
    ///
    /// # Errors
    /// If the version of the monitor is incompatible.
    pub fn version(&self) -> Result<Version, Malformed> {
        Version::agreed(self.version_major, self.version_minor, ["monitor", "agent"])
    }
}

impl AlertAction {
    /// Checks an action against the bounds of the protocol.
    ///
    /// # Errors
    /// If a text is too long, or a time is out of range.
    pub fn check(&self) -> Result<(), Malformed> {
        let disk = self.disk.as_deref().unwrap_or_default();
        for text in [&*self.instance, &*self.vm, disk, &*self.effect] {
            at_most("actions: bytes of a text", text.len(), NAME_BYTES_MAX)?;
        }
        instant("actions: fired_at_ns", self.fired_at_ns)?;
        instant("actions: hold_ns", self.hold_ns)?;
        instant("actions: cooldown_ns", self.cooldown_ns).map(drop)
    }
}

fn heartbeat(ns: i64) -> Result<(), Malformed> {
    match HEARTBEAT_INTERVAL_NS.contains(&ns) {
        true => Ok(()),
        false => Err(Malformed(format!(
            "heartbeat interval: {ns} ns, it must be between {} and {} ns",
            HEARTBEAT_INTERVAL_NS.start(),
            HEARTBEAT_INTERVAL_NS.end()
        ))),
    }
}
