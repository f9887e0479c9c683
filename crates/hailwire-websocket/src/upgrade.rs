//! The upgrade of HTTP/1.1 that begins a WebSocket (RFC 6455, section 4).

use std::io;

use bytes::{Buf, BytesMut};
use data_encoding::BASE64;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, header,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::{Role, WebSocket, WebSocketError, WebSocketLimits};

/// The suffix of the key (RFC 6455, section 1.3).
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// The most header fields of a head.
const FIELDS: usize = 64;

/// The size of a read of the head.
const READ_SIZES: usize = 1024;

/// Requests a WebSocket at `uri`, with additional header fields.
///
/// # Errors
///
/// [`WebSocketError::Io`], or [`WebSocketError::Upgrade`] if the server answers anything but an upgrade.
pub async fn connect<IO: AsyncRead + AsyncWrite + Unpin>(
    mut io: IO,
    uri: &Uri,
    headers: &HeaderMap,
    limits: WebSocketLimits,
) -> Result<(WebSocket<IO>, Response<()>), WebSocketError> {
    let mut key = [0; 16];
    getrandom::fill(&mut key).map_err(io::Error::other)?;
    let key = BASE64.encode(&key);
    io.write_all(&request(uri, headers, &key)).await?;
    io.flush().await?;
    let (response, rest) = read_head(&mut io, limits.max_head, parse_response).await?;
    let fields = response.headers();
    let accepted = fields.get(header::SEC_WEBSOCKET_ACCEPT);
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Err(refused(&format!("it answered {}", response.status())));
    }
    if !names(fields, &header::UPGRADE, "websocket")
        || !names(fields, &header::CONNECTION, "upgrade")
        || accepted.is_none_or(|value| value.as_bytes() != accept_value(&key).as_bytes())
    {
        return Err(refused("its answer is not that of a WebSocket"));
    }
    let socket = WebSocket::with_rest(io, Role::Client, limits, rest);
    Ok((socket, response))
}

/// Accepts a request for a WebSocket, with additional header fields.
///
/// # Errors
///
/// [`WebSocketError::Io`], or [`WebSocketError::Upgrade`] if the client requests anything else, which is answered with an error.
pub async fn accept<IO: AsyncRead + AsyncWrite + Unpin>(
    mut io: IO,
    headers: &HeaderMap,
    limits: WebSocketLimits,
) -> Result<(Request<()>, WebSocket<IO>), WebSocketError> {
    let read = read_head(&mut io, limits.max_head, parse_request).await;
    let asked = read.and_then(|(request, rest)| Ok((asked_key(&request)?, request, rest)));
    let (key, request, rest) = match asked {
        Ok(asked) => asked,
        Err(error) => {
            let answer =
                b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
            // Whoever cannot be told learns it from the end of the connection.
            let _ = io.write_all(answer).await;
            return Err(error);
        }
    };
    let mut answer = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\
        Connection: Upgrade\r\nSec-WebSocket-Accept: "
        .to_vec();
    answer.extend_from_slice(accept_value(&key).as_bytes());
    answer.extend_from_slice(b"\r\n");
    write_fields(&mut answer, headers);
    io.write_all(&answer).await?;
    io.flush().await?;
    Ok((
        request,
        WebSocket::with_rest(io, Role::Server, limits, rest),
    ))
}

/// The value of `Sec-WebSocket-Accept` that answers a request for a WebSocket, for whoever answers it over an HTTP server and then
/// begins with [`WebSocket::over`].
///
/// # Errors
///
/// [`WebSocketError::Upgrade`] if the client requests anything else.
pub fn upgrade_answer<B>(request: &Request<B>) -> Result<String, WebSocketError> {
    asked_key(request).map(|key| accept_value(&key))
}

fn request(uri: &Uri, headers: &HeaderMap, key: &str) -> Vec<u8> {
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let host = uri.authority().map_or("", |authority| {
        let whole = authority.as_str();
        whole.rsplit_once('@').map_or(whole, |(_, host)| host)
    });
    let mut request = format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n"
    )
    .into_bytes();
    write_fields(&mut request, headers);
    request
}

fn write_fields(head: &mut Vec<u8>, headers: &HeaderMap) {
    for (name, value) in headers {
        head.extend_from_slice(name.as_str().as_bytes());
        head.extend_from_slice(b": ");
        head.extend_from_slice(value.as_bytes());
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"\r\n");
}

/// Reads a head, and the bytes received after it.
async fn read_head<IO: AsyncRead + Unpin, T>(
    io: &mut IO,
    max: usize,
    parse: impl Fn(&[u8]) -> Result<Option<(T, usize)>, WebSocketError>,
) -> Result<(T, BytesMut), WebSocketError> {
    let mut buffer = BytesMut::new();
    loop {
        let room = max.saturating_sub(buffer.len()).min(READ_SIZES);
        if room == 0 {
            return Err(refused(&format!(
                "its head is longer than {} KiB",
                max / 1024
            )));
        }
        buffer.reserve(room);
        if (&mut *io).take(room as u64).read_buf(&mut buffer).await? == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        if let Some((head, len)) = parse(&buffer)? {
            buffer.advance(len);
            return Ok((head, buffer));
        }
    }
}

fn parse_request(bytes: &[u8]) -> Result<Option<(Request<()>, usize)>, WebSocketError> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS];
    let mut parsed = httparse::Request::new(&mut fields);
    let httparse::Status::Complete(len) = parsed.parse(bytes).map_err(garbled)? else {
        return Ok(None);
    };
    let mut request = Request::new(());
    *request.method_mut() = parsed.method.unwrap_or_default().parse().map_err(garbled)?;
    *request.uri_mut() = parsed.path.unwrap_or_default().parse().map_err(garbled)?;
    *request.headers_mut() = header_map(parsed.headers)?;
    let version = parsed.version == Some(1);
    version
        .then_some(Some((request, len)))
        .ok_or_else(|| refused("it does not speak HTTP/1.1"))
}

fn parse_response(bytes: &[u8]) -> Result<Option<(Response<()>, usize)>, WebSocketError> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS];
    let mut parsed = httparse::Response::new(&mut fields);
    let httparse::Status::Complete(len) = parsed.parse(bytes).map_err(garbled)? else {
        return Ok(None);
    };
    let mut response = Response::new(());
    let status = StatusCode::from_u16(parsed.code.unwrap_or_default());
    *response.status_mut() = status.map_err(garbled)?;
    *response.headers_mut() = header_map(parsed.headers)?;
    Ok(Some((response, len)))
}

fn header_map(fields: &[httparse::Header<'_>]) -> Result<HeaderMap, WebSocketError> {
    let mut map = HeaderMap::with_capacity(fields.len());
    for field in fields {
        let name = HeaderName::from_bytes(field.name.as_bytes()).map_err(garbled)?;
        map.append(name, HeaderValue::from_bytes(field.value).map_err(garbled)?);
    }
    Ok(map)
}

/// The key of a request for a WebSocket.
fn asked_key<B>(request: &Request<B>) -> Result<String, WebSocketError> {
    let fields = request.headers();
    let version = fields.get(header::SEC_WEBSOCKET_VERSION);
    if request.method() != Method::GET
        || !names(fields, &header::UPGRADE, "websocket")
        || !names(fields, &header::CONNECTION, "upgrade")
        || version.is_none_or(|version| version != "13")
    {
        return Err(refused("it did not ask for a WebSocket"));
    }
    let key = fields
        .get(header::SEC_WEBSOCKET_KEY)
        .and_then(|key| key.to_str().ok());
    key.filter(|key| {
        BASE64
            .decode(key.as_bytes())
            .is_ok_and(|key| key.len() == 16)
    })
    .map(str::to_owned)
    .ok_or_else(|| refused("it gave no key"))
}

/// Whether a comma-separated header field names something.
fn names(fields: &HeaderMap, field: &HeaderName, what: &str) -> bool {
    let values = fields
        .get_all(field)
        .iter()
        .filter_map(|value| value.to_str().ok());
    values
        .flat_map(|value| value.split(','))
        .any(|name| name.trim().eq_ignore_ascii_case(what))
}

fn accept_value(key: &str) -> String {
    let mut digest = sha1_smol::Sha1::from(key.as_bytes());
    digest.update(GUID);
    BASE64.encode(&digest.digest().bytes())
}

fn garbled(error: impl std::fmt::Display) -> WebSocketError {
    refused(&format!("its head cannot be read: {error}"))
}

fn refused(why: &str) -> WebSocketError {
    WebSocketError::Upgrade(why.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_the_rfc_gets_the_answer_of_the_rfc() {
        let value = accept_value("dGhlIHNhbXBsZSBub25jZQ==");
        assert_eq!(value, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }
}
