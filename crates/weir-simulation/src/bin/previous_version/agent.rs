//! The agent: it sends rows, loses its connection half way, and sends again what was not
//! acknowledged.

use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::{FlightData, FlightDescriptor};
use prost::Message;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Streaming};

use crate::proto::from_agent::Body;
use crate::proto::from_monitor::Body as Order;
use crate::proto::{
    ChannelStarted, ColumnEncoding, ColumnKind, FromAgent, FromMonitor, Hello, Ping, RowsHeader,
    Status,
};
use crate::{WAIT_MAX, data, now, version};

/// Rows of one message.
const MESSAGE_ROWS: u64 = 10;
/// The number of this process.
const INSTANCE: u64 = 7;

/// A connection that was welcomed.
struct Connection {
    up: mpsc::Sender<FlightData>,
    down: Streaming<FlightData>,
    acked: u64,
}

/// Messages of the monitor that this version does not know.
#[derive(Default)]
struct Received {
    unknown: u64,
    acked: u64,
}

/// Sends `rows` rows.
pub async fn run(address: &str, rows: u64) -> Result<String, String> {
    let mut received = Received::default();
    let mut connection = connect(address).await?;
    let channel = loop {
        if let Some(Order::Start(start)) = receive(&mut connection, &mut received).await? {
            break start.channel;
        }
    };
    let messages = messages(channel, rows);
    let half = messages.len() / 2;
    send(&connection, &messages[..half], 0).await?;
    // Some of them are acknowledged, and the connection is lost.
    while received.acked == 0 {
        receive(&mut connection, &mut received).await?;
    }
    drop(connection);
    let mut connection = connect(address).await?;
    let acked = connection.acked as usize;
    if acked < received.acked as usize || acked > half {
        return Err(format!("{acked} messages are acknowledged of {half}"));
    }
    send(&connection, &messages[acked..], acked as u64).await?;
    if version().1 > 2 {
        // A later version has messages and fields that this monitor does not know.
        for unknown in [&[0x9a, 0x06, 0][..], &[0x62, 3, 0x9a, 0x06, 0]] {
            let message = FlightData {
                app_metadata: unknown.to_vec().into(),
                ..FlightData::default()
            };
            let sent = connection.up.send(message).await;
            sent.map_err(|_| "the connection is gone")?;
        }
    }
    while received.acked < messages.len() as u64 {
        receive(&mut connection, &mut received).await?;
    }
    Ok(format!(
        "{{\"acked\": {}, \"repeated\": {}, \"unknown\": {}}}",
        received.acked,
        half - acked,
        received.unknown
    ))
}

/// Connects and reads the welcome.
async fn connect(address: &str) -> Result<Connection, String> {
    let dial = tonic::transport::Endpoint::from_shared(format!("http://{address}"));
    let dial = dial.map_err(|e| e.to_string())?.connect().await;
    let mut flight = FlightServiceClient::new(dial.map_err(|e| e.to_string())?);
    let (up, messages) = mpsc::channel(64);
    let (version_major, version_minor) = version();
    let hello = Hello {
        version_major,
        version_minor,
        host: "previous".into(),
        instance: INSTANCE,
        program: "previous_version".into(),
        ..Hello::default()
    };
    let first = FlightData {
        flight_descriptor: Some(FlightDescriptor::new_path(vec!["agent".to_owned()])),
        ..data(&message(0, Body::Hello(hello)))
    };
    up.try_send(first).expect("the queue is empty");
    let call = flight.do_exchange(Request::new(ReceiverStream::new(messages)));
    let down = call.await.map_err(|status| status.message().to_owned())?;
    let mut connection = Connection {
        up,
        down: down.into_inner(),
        acked: 0,
    };
    match receive(&mut connection, &mut Received::default()).await? {
        Some(Order::Welcome(welcome)) => connection.acked = welcome.acked,
        other => return Err(format!("{other:?} in place of a welcome")),
    }
    let ping = Ping { origin_ns: now() };
    for body in [Body::Resume(connection.acked + 1), Body::Ping(ping)] {
        let sent = connection.up.send(data(&message(0, body))).await;
        sent.map_err(|_| "the connection is gone")?;
    }
    Ok(connection)
}

/// The next message of the monitor.
async fn receive(
    connection: &mut Connection,
    received: &mut Received,
) -> Result<Option<Order>, String> {
    let next = timeout(WAIT_MAX, connection.down.message()).await;
    let next = next.map_err(|_| "the monitor is silent")?;
    let next = next.map_err(|status| status.message().to_owned())?;
    let bytes = next.ok_or("the monitor ended the connection")?.app_metadata;
    let message = FromMonitor::decode(bytes.clone()).map_err(|e| e.to_string())?;
    received.unknown += u64::from(message.encoded_len() != bytes.len());
    match message.body {
        Some(Order::Ack(number)) => {
            received.acked = received.acked.max(number);
            Ok(None)
        }
        body => Ok(body),
    }
}

/// The numbered messages: the channel runs, and rows with a watermark after each message.
fn messages(channel: u64, rows: u64) -> Vec<Body> {
    let started_at = now();
    let started = ChannelStarted {
        channel,
        at_ns: started_at,
    };
    let mut messages = vec![Body::Started(started)];
    for number in 0..rows / MESSAGE_ROWS {
        let at_ns = started_at + 1 + number as i64;
        let all = |base| ColumnEncoding {
            kind: ColumnKind::Int.into(),
            base,
            ..ColumnEncoding::default()
        };
        messages.push(Body::Rows(RowsHeader {
            channel,
            rows: MESSAGE_ROWS as u32,
            ts: Some(all(at_ns)),
            columns: vec![all(number as i64)],
            ..RowsHeader::default()
        }));
        messages.push(Body::Watermark(at_ns));
    }
    messages.push(Body::Watermark(i64::MAX));
    messages
}

/// Sends numbered messages, the first with the number after `before`, and a status.
async fn send(connection: &Connection, messages: &[Body], before: u64) -> Result<(), String> {
    let numbers = before + 1..;
    let numbered = numbers.zip(messages.iter().cloned());
    let status = Status {
        kept_share: 1.0,
        ..Status::default()
    };
    for (number, body) in [(0, Body::Status(status))].into_iter().chain(numbered) {
        let sent = connection.up.send(data(&message(number, body))).await;
        sent.map_err(|_| "the connection is gone")?;
    }
    Ok(())
}

fn message(number: u64, body: Body) -> FromAgent {
    FromAgent {
        number,
        body: Some(body),
    }
}
