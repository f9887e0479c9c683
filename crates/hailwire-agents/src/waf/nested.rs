//! JSON and XML within a value: a field of a form, a cookie or a header field may hold a document.
//!
//! Only what would not be seen in the value as it is makes it worth reading: escapes of JSON, and of XML references,
//! comments and CDATA sections. One level of this is read, of a value that fits into a window.

use super::{
    body::{Json, Sink, WINDOW, Xml, after_mark},
    rules::Value,
    seclang::Variable,
};

/// Gives the values within one.
pub(super) fn values(value: &Value<'_>, sink: &mut Sink<'_>) {
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
    let text = after_mark(value.bytes);
    let has = |mark: &[u8]| memchr::memmem::find(text, mark).is_some();
    match text.first() {
        Some(b'{' | b'[' | b'"') if has(b"\\") => {
            let mut json = Json::default();
            json.feed(text, sink);
            json.finish(sink);
        }
        Some(b'<') if has(b"&") || has(b"<!") || has(b"<?") => {
            let mut xml = Xml::new(false);
            xml.feed(text, sink);
            xml.finish(sink);
        }
        _ => {}
    }
}
