//! Envoy's side of external processing, as far as a head goes: a gRPC client with the messages of its own.

use prost::Message;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Status, Streaming,
    client::Grpc,
    codegen::http::uri::PathAndQuery,
    transport::{Channel, Endpoint},
};
use tonic_prost::ProstCodec;

#[derive(Clone, PartialEq, Message)]
pub(super) struct Tells {
    #[prost(message, optional, tag = "2")]
    request_headers: Option<Heads>,
}

#[derive(Clone, PartialEq, Message)]
struct Heads {
    #[prost(message, optional, tag = "1")]
    headers: Option<Fields>,
    #[prost(bool, tag = "3")]
    end_of_stream: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Fields {
    #[prost(message, repeated, tag = "1")]
    headers: Vec<Field>,
}

#[derive(Clone, PartialEq, Message)]
struct Field {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(bytes = "vec", tag = "3")]
    raw_value: Vec<u8>,
}

/// What is answered to a head, without what may be changed of it.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Says {
    #[prost(message, optional, tag = "1")]
    request_headers: Option<Anything>,
    #[prost(message, optional, tag = "7")]
    immediate_response: Option<Anything>,
}

#[derive(Clone, PartialEq, Message)]
struct Anything {}

/// A connection, as one of Envoy's.
#[derive(Clone)]
pub(super) struct Envoy(Channel);

/// A request of its, whose head has been sent.
pub(super) struct Request {
    said: Streaming<Says>,
    /// Envoy ends its side when the answer has come.
    tells: Option<mpsc::Sender<Tells>>,
}

impl Envoy {
    /// Connects: `http://IP:PORT`, or `unix:PATH`.
    pub(super) async fn connect(to: String) -> Result<Self, tonic::transport::Error> {
        Ok(Self(Endpoint::from_shared(to)?.connect().await?))
    }

    /// Sends the head of a request without a body.
    pub(super) async fn sends(&self, path: &str) -> Result<Request, Status> {
        let field = |(key, value): (&str, &str)| Field {
            key: key.to_owned(),
            raw_value: value.as_bytes().to_vec(),
        };
        let fields = [(":method", "GET"), (":path", path)].map(field);
        let head = Tells {
            request_headers: Some(Heads {
                headers: Some(Fields {
                    headers: fields.into(),
                }),
                end_of_stream: true,
            }),
        };
        let (tells, told) = mpsc::channel(1);
        tells.try_send(head).unwrap();
        let mut client = Grpc::new(self.0.clone());
        client
            .ready()
            .await
            .map_err(|error| Status::unavailable(error.to_string()))?;
        let method =
            PathAndQuery::from_static("/envoy.service.ext_proc.v3.ExternalProcessor/Process");
        let codec = ProstCodec::<Tells, Says>::default();
        let told = tonic::Request::new(ReceiverStream::new(told));
        let said = client.streaming(told, method, codec).await?.into_inner();
        Ok(Request {
            said,
            tells: Some(tells),
        })
    }
}

impl Request {
    /// Waits for the answer, that it may go on, and for the end.
    pub(super) async fn goes_on(mut self) {
        let said = self.said.message().await.unwrap().unwrap();
        assert!(said.request_headers.is_some(), "{said:?}");
        self.tells = None;
        assert_eq!(self.said.message().await.unwrap(), None);
    }
}
