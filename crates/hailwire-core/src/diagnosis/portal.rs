//! Captive portals: from what was answered to a request without TLS.
//!
//! A portal answers every page on every address with its own, or sends the browser to it (RFC 8952 calls that redirection). So a page
//! is asked for that no hub and no other server has: an honest server says that there is none, or sends to the same host's TLS port.

use super::HubReach;

/// Most bytes of an answer that are looked at.
pub const MAX_PLAIN_ANSWER: usize = 2048;

/// What a request without TLS for a page that does not exist was answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum PlainAnswer {
    /// Nothing, or what any server answers.
    #[default]
    Ordinary,
    /// A page, though there is none.
    Page,
    /// It is elsewhere, at another host, or the network asks to sign in (RFC 6585, 6).
    SignIn,
}

/// What the beginning of an answer of HTTP/1 from `host` means.
#[must_use]
pub fn read_plain_answer(answer: &[u8], host: &str) -> PlainAnswer {
    let head = String::from_utf8_lossy(&answer[..answer.len().min(MAX_PLAIN_ANSWER)]);
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| {
        let (version, rest) = line.split_once(' ')?;
        let is_http = version.starts_with("HTTP/1.");
        rest.get(..3).filter(|_| is_http)?.parse::<u16>().ok()
    });
    let lines = lines.take_while(|line| !line.is_empty());
    let location = lines.filter_map(|line| line.split_once(':'));
    let mut location = location.filter(|(name, _)| name.trim().eq_ignore_ascii_case("location"));
    match status {
        Some(511) => PlainAnswer::SignIn,
        Some(200) => PlainAnswer::Page,
        Some(301 | 302 | 303 | 307 | 308) => match location.next() {
            Some((_, to)) if is_elsewhere(to.trim(), host) => PlainAnswer::SignIn,
            _ => PlainAnswer::Ordinary,
        },
        _ => PlainAnswer::Ordinary,
    }
}

/// Whether a URL leads to another host than `host`, its domain or one of its subdomains.
fn is_elsewhere(url: &str, host: &str) -> bool {
    let Some((_, rest)) = url.split_once("://") else {
        return false;
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let named = authority.rsplit('@').next().unwrap_or_default();
    let named = match named.strip_prefix('[') {
        Some(six) => six.split(']').next().unwrap_or_default(),
        None => named.split(':').next().unwrap_or_default(),
    };
    let (named, host) = (named.to_ascii_lowercase(), host.to_ascii_lowercase());
    let is_below = |one: &str, other: &str| {
        let domain = one.strip_suffix(other);
        domain.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    !is_below(&named, &host) && !is_below(&host, &named)
}

/// Whether a portal stands where the hub should be. A page says so only where the hub's own port answers wrongly, since a web server may
/// stand beside a hub that is down.
pub(super) fn is_in_place_of(reach: &HubReach, plain: PlainAnswer) -> bool {
    match reach {
        HubReach::OtherKey | HubReach::Failed(_) => plain != PlainAnswer::Ordinary,
        HubReach::Refused | HubReach::Silent => plain == PlainAnswer::SignIn,
        HubReach::Answers(_)
        | HubReach::UnknownName
        | HubReach::NotAMember
        | HubReach::Proxy(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(answer: &str) -> PlainAnswer {
        read_plain_answer(answer.as_bytes(), "hub.example.com")
    }

    #[test]
    fn a_page_that_cannot_be_there_and_a_way_to_another_host_are_a_portal() {
        use PlainAnswer::{Ordinary, Page, SignIn};

        let to = |url: &str| read(&format!("HTTP/1.1 302 Found\r\nlocation: {url}\r\n\r\n"));
        assert_eq!(to("http://login.hotel.net/?to=hub.example.com"), SignIn);
        assert_eq!(to("https://[2001:db8::1]:8443/"), SignIn);
        assert_eq!(to("http://hub.example.com@10.0.0.1/"), SignIn);
        assert_eq!(to("https://hub.example.com.evil.net/"), SignIn);
        assert_eq!(to("https://nothub.example.com.net"), SignIn);
        assert_eq!(read("HTTP/1.0 511 Sign in\r\n\r\n"), SignIn);
        assert_eq!(read("HTTP/1.1 200 OK\r\n\r\n<html>"), Page);
        for own in [
            "https://HUB.example.com/x",
            "https://example.com",
            "/x",
            "https://hub.example.com:443",
        ] {
            assert_eq!(to(own), Ordinary, "{own}");
        }
        for other in [
            "",
            "HTTP/1.1",
            "HTTP/1.1 404 Not Found\r\n\r\n",
            "HTTP/1.1 400 x",
            "SSH-2.0 200",
            "HTTP/1.1 302 x\r\n\r\nlocation: http://a/",
        ] {
            assert_eq!(read(other), Ordinary, "{other}");
        }
        assert_eq!(read_plain_answer(&[0xff; 9000], "hub"), Ordinary);
    }

    #[test]
    fn a_web_server_beside_a_hub_that_is_down_is_no_portal() {
        let (page, sign_in) = (PlainAnswer::Page, PlainAnswer::SignIn);
        assert!(is_in_place_of(&HubReach::OtherKey, page));
        assert!(is_in_place_of(&HubReach::Silent, sign_in));
        assert!(!is_in_place_of(&HubReach::Refused, page));
        assert!(!is_in_place_of(&HubReach::OtherKey, PlainAnswer::Ordinary));
        let answers = HubReach::Answers(std::time::Duration::ZERO);
        assert!(!is_in_place_of(&answers, sign_in));
    }
}
