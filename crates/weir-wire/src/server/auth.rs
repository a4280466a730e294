//! [`AuthService`]: authenticates a request before its body is read.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use arrow_flight::flight_service_server::FlightServiceServer;
use tonic::Status;
use tonic::body::Body;
use tower_service::Service;

use super::connections::{ActiveRequest, Connection};
use super::counters::Count;
use super::limits::{AGENT_MESSAGE_BYTES_MAX, CLIENT_MESSAGE_BYTES_MAX};
use super::requests::standby_status;
use super::service::{Caller, FlightApi, Shared};
use crate::access::Credentials;

/// The call of agents; the only one with long messages.
const EXCHANGE: &str = "/arrow.flight.protocol.FlightService/DoExchange";

/// The service that receives HTTP/2 requests.
#[derive(Clone, Debug)]
pub(super) struct AuthService {
    shared: Arc<Shared>,
    agents: FlightServiceServer<FlightApi>,
    clients: FlightServiceServer<FlightApi>,
}

impl AuthService {
    pub(super) fn new(shared: Arc<Shared>) -> AuthService {
        let edge = Arc::new(FlightApi(shared.clone()));
        AuthService {
            shared,
            agents: FlightServiceServer::from_arc(edge.clone())
                .max_decoding_message_size(AGENT_MESSAGE_BYTES_MAX),
            clients: FlightServiceServer::from_arc(edge)
                .max_decoding_message_size(CLIENT_MESSAGE_BYTES_MAX),
        }
    }

    /// The authenticated caller.
    fn rewrite(&self, request: &http::Request<Body>) -> Result<Caller, Status> {
        let connection = request
            .extensions()
            .get::<Arc<Connection>>()
            .expect("every connection has its connect info");
        let authorization = request.headers().get("authorization");
        let credentials = Credentials {
            peer: connection.peer,
            authorization: authorization.map(|h| String::from_utf8_lossy(h.as_bytes()).into()),
            certificate: connection.certificate.get().map(|c| c.grant.clone()),
        };
        let grant = self.shared.rules.borrow().access.grant(&credentials);
        let grant = grant.map_err(|why| {
            self.shared
                .refused(connection, Count::Unauthenticated, &why);
            Status::unauthenticated(why)
        })?;
        self.shared.within_rate(&grant.principal.name)?;
        if let Some(why) = &*self.shared.standby.borrow() {
            self.shared.counters.add(Count::Standby, 1);
            return Err(standby_status(why));
        }
        Ok(Caller {
            connection: connection.clone(),
            credentials,
            grant,
        })
    }
}

impl Service<http::Request<Body>> for AuthService {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        self.shared.counters.add(Count::Requests, 1);
        let caller = match self.rewrite(&request) {
            Ok(caller) => caller,
            Err(status) => return Box::pin(async move { Ok(status.into_http()) }),
        };
        let busy = ActiveRequest::new(&caller.connection);
        request.extensions_mut().insert(caller);
        let answer = match request.uri().path() {
            EXCHANGE => self.agents.call(request),
            _ => self.clients.call(request),
        };
        let wait_max = Duration::from_millis(self.shared.limits.request_ms);
        let shared = self.shared.clone();
        Box::pin(async move {
            let _busy = busy;
            match tokio::time::timeout(wait_max, answer).await {
                Ok(answer) => answer,
                Err(_) => {
                    shared.counters.add(Count::Unanswered, 1);
                    let why = "the request was not received or answered in time";
                    Ok(Status::deadline_exceeded(why).into_http())
                }
            }
        })
    }
}
