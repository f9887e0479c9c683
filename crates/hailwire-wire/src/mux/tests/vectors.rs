//! `spec/vectors/mux.json`: the bytes that every implementation writes and reads.

use serde_json::Value;

use super::*;
use crate::status::Code;

const VECTORS: &str = include_str!(concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../spec/vectors/mux.json"
));

fn unhex(value: &Value) -> Bytes {
    let text = value.as_str().unwrap();
    data_encoding::HEXLOWER
        .decode(text.as_bytes())
        .unwrap()
        .into()
}

fn frame(value: &Value) -> MuxFrame {
    let number = |key: &str| value[key].as_u64().unwrap();
    let stream = || number("stream");
    let priority = || Priority::ALL[number("priority") as usize];
    let code = || Code::from_number(number("code"));
    let eight = || unhex(&value["payload"])[..].try_into().unwrap();
    match value["kind"].as_str().unwrap() {
        "DATA" => MuxFrame::Data {
            stream: stream(),
            priority: priority(),
            fin: value["fin"].as_bool().unwrap(),
            body: unhex(&value["payload"]),
        },
        "RESET" => MuxFrame::Reset {
            stream: stream(),
            priority: priority(),
            code: code(),
        },
        "STOP" => MuxFrame::Stop {
            stream: stream(),
            priority: priority(),
            code: code(),
        },
        "WINDOW" => MuxFrame::Window {
            stream: stream(),
            priority: priority(),
            credit: number("credit") as u32,
        },
        "STREAMS" => MuxFrame::Streams(number("credit") as u32),
        "PING" => MuxFrame::Ping(eight()),
        "PONG" => MuxFrame::Pong(eight()),
        "DATAGRAM" => MuxFrame::Datagram(unhex(&value["payload"])),
        "CLOSE" => MuxFrame::Close {
            code: code(),
            reason: value["reason"].as_str().unwrap().into(),
        },
        other => panic!("{other}"),
    }
}

fn decode(bytes: &Bytes) -> Result<Option<MuxFrame>, MuxError> {
    let mut bytes = bytes.clone();
    let mut decoder = MuxDecoder::default();
    let mut body = BytesMut::new();
    let mut data = None;
    while let Some(item) = decoder.next_item(&mut bytes)? {
        match item {
            DecodedItem::Frame(frame) => return Ok(Some(frame)),
            DecodedItem::Data(header) => data = Some(header),
            DecodedItem::Part(part) => body.extend_from_slice(&part),
            DecodedItem::DataEnd => return MuxFrame::decode(data.unwrap(), body.freeze()),
        }
    }
    Ok(None)
}

#[test]
fn every_vector_is_written_and_read_as_stated() {
    let vectors: Value = serde_json::from_str(VECTORS).unwrap();
    for case in vectors["prefaces"].as_array().unwrap() {
        let bytes = unhex(&case["hex"]);
        let role = if case["role"] == "client" {
            MuxRole::Client
        } else {
            MuxRole::Server
        };
        assert_eq!(bytes, &preface(role)[..]);
        assert_eq!(parse_preface(&bytes, role.other()), Ok(Some(())));
    }
    for case in vectors["refused_prefaces"].as_array().unwrap() {
        let error = parse_preface(&unhex(&case["hex"]), MuxRole::Server).unwrap_err();
        assert_eq!(error.to_string(), case["error"].as_str().unwrap());
    }
    for case in vectors["frames"].as_array().unwrap() {
        let (bytes, frame) = (unhex(&case["hex"]), frame(&case["frame"]));
        let name = &case["name"];
        assert_eq!(encoded(std::slice::from_ref(&frame)), bytes, "{name}");
        assert_eq!(decode(&bytes), Ok(Some(frame)), "{name}");
    }
    for case in vectors["skipped"].as_array().unwrap() {
        assert_eq!(decode(&unhex(&case["hex"])), Ok(None), "{}", case["name"]);
    }
    for case in vectors["refused"].as_array().unwrap() {
        let mut server = greeted_server();
        let error = server.handle_input(unhex(&case["hex"])).unwrap_err();
        assert_eq!(
            error.to_string(),
            case["error"].as_str().unwrap(),
            "{}",
            case["name"]
        );
    }
}

#[test]
fn the_conversation_of_the_document_is_the_one_that_the_code_holds() {
    let vectors: Value = serde_json::from_str(VECTORS).unwrap();
    let mut client = Mux::new(MuxRole::Client);
    let mut server = Mux::new(MuxRole::Server);
    let mut turns = vectors["conversation"].as_array().unwrap().iter();
    let mut turn = |from: &mut Mux, to: &mut Mux| {
        let bytes = output(from);
        let turn = turns.next().unwrap();
        assert_eq!(bytes, unhex(&turn["hex"]), "{}", turn["what"]);
        to.handle_input(bytes).unwrap();
    };
    let near = opened(&mut client, Priority::High);
    write(&mut client, near, b"ping");
    client.finish(near);
    turn(&mut client, &mut server);
    let far = accepted(&mut server);
    assert_eq!(read(&mut server, far), b"ping");
    write(&mut server, far, b"pong");
    server.finish(far);
    turn(&mut server, &mut client);
    assert_eq!(read(&mut client, near), b"pong");
    client.close(Code::Ok, "done");
    turn(&mut client, &mut server);
}
