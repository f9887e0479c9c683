//! JSON and XML nested in a value: a form field, a cookie or a header field may contain a document.
//!
//! A value is only parsed if it contains syntax that hides text: JSON escapes, or XML references, comments and CDATA
//! sections. One level of nesting is parsed, in values that fit into a window.

use super::{
    body::{JsonReader, ValueSink, WINDOW, XmlReader, skip_bom},
    rules::InspectedValue,
    seclang::Variable,
};

/// Emits the values of a document nested in a value.
pub(super) fn values(value: &InspectedValue<'_>, sink: &mut ValueSink<'_>) {
    let may_hold = matches!(
        value.variable,
        Variable::ArgsGet
            | Variable::ArgsPost
            | Variable::RequestCookies
            | Variable::RequestHeaders
            | Variable::Xml
    );
    if !may_hold || !value.first || value.bytes.len() > WINDOW {
        return;
    }
    let text = skip_bom(value.bytes);
    let has = |mark: &[u8]| memchr::memmem::find(text, mark).is_some();
    match text.first() {
        Some(b'{' | b'[' | b'"') if has(b"\\") => {
            let mut json = JsonReader::default();
            json.feed(text, sink);
            json.finish(sink);
        }
        Some(b'<') if has(b"&") || has(b"<!") || has(b"<?") => {
            let mut xml = XmlReader::new(false);
            xml.feed(text, sink);
            xml.finish(sink);
        }
        _ => {}
    }
}
