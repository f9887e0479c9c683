//! `quic { … }`: how the QUIC carrier is tuned.
//!
//! Each default is the result of a measurement; `docs/decisions/0015-quic-settings.md` says which.
//! What the engine does not let anybody choose is said in [`super::effective`], not silently left
//! out.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Serialize, Serializer};

use super::sections::as_text;

/// How the QUIC carrier is tuned. Takes effect for tunnels that come up after the start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct QuicSettings {
    /// Who decides how fast to send. Default: auto.
    pub congestion: CongestionControl,
    /// Bidirectional streams that a peer may have open at once: its calls under way. Default:
    /// 1024; at least 100.
    pub streams: u32,
    /// Unidirectional streams that a peer may have open at once. Default: 100; at most 65,536, 0 for
    /// none. Sessions use none: what a later version opens is refused stream by stream, and its tunnel
    /// lives on. Untrusted peers may open none.
    pub uni_streams: u32,
    /// Unread bytes of one stream that a peer may have under way. Default: 2 MiB; from 2 MiB, which
    /// an urgent call's beginning may need, to 1 GiB. It bounds the rate of a single answer to this
    /// much a round trip. From about 3 MiB on, a path that loses every second packet can end the
    /// tunnel: the engine keeps at most 1,024 pieces of a stream that wait for a gap before them.
    pub stream_window: ByteSize,
    /// Most unread bytes of all streams of one peer, and so the memory that a peer may occupy. The
    /// window begins at a quarter and grows with the bandwidth-delay product up to this. Default:
    /// 128 MiB; at least four stream windows.
    pub window: ByteSize,
    /// Bytes sent to one peer and not yet acknowledged. Default: 8 MiB.
    pub send_window: ByteSize,
    /// Bytes that may be in flight on a path that was quiet for a round trip, at its beginning and later,
    /// where the congestion control would allow less; sent over a sixteenth of the round trip, and
    /// not within ten seconds of a loss. Default: 64 KiB, about 50 calls of 1 KB; up to 1 MiB; 0 B leaves it to the
    /// congestion control, which begins with ten packets (RFC 9002, 7.2).
    pub initial_window: ByteSize,
    /// Silence after which a tunnel without traffic is given up, from 1 s to 10 min. It counts from the
    /// first keep-alive that stays without an answer (RFC 9000, 10.1). Default: 30 s.
    #[serde(serialize_with = "as_text")]
    pub idle_timeout: Duration,
    /// Silence after which one path of a tunnel is given up for another, with calls in flight, from 1 s to 15 s. Default: 3 s. At rest, and where a tunnel
    /// has no other path, it is 15 s.
    #[serde(serialize_with = "as_text")]
    pub path_silence: Duration,
    /// How often an idle path says that it is alive. Default and most: 5 s.
    #[serde(serialize_with = "as_text")]
    pub keep_alive: Duration,
    /// Bytes that the kernel may keep for each UDP socket in either direction. Default: 7 MiB; from 64
    /// KiB to 1 GiB. The kernel grants at most `net.core.rmem_max` and `wmem_max`.
    pub socket_buffer: ByteSize,
    /// The cipher that is offered first to a peer that is dialled. Default: auto.
    pub cipher: TlsCipher,
    /// Tell the peer how to acknowledge (draft-ietf-quic-ack-frequency), with the two settings that
    /// follow. Default: true; without it the peer does as RFC 9000 says.
    pub ack_frequency: bool,
    /// How long the peer may wait before it acknowledges what came alone. Default: 1 ms; from 1 ms to
    /// 25 ms, which is what RFC 9000, 18.2, has without the setting before. When the last packets of
    /// a message are lost, that is noticed after a round trip and this.
    #[serde(serialize_with = "as_text")]
    pub ack_delay: Duration,
    /// Packets that the peer may receive before it must acknowledge at once. Default: 2.
    pub ack_every: u32,
    /// Hand several packets to the kernel at once (UDP GSO). Default: true.
    pub gso: bool,
    /// Search for the largest packet that the path takes (RFC 8899). Default: true.
    pub mtu_discovery: bool,
    /// Largest UDP payload that the search tries, in bytes. Default: 1452; from 1200 to 65527.
    pub mtu_max: u32,
    /// Paths that one tunnel may hold at once. Default and least: 8, the engine's own; at most 64.
    pub max_paths: u32,
    /// Let calls with an idempotency key travel in the first flight of a resumed tunnel (0-RTT), and
    /// take such from trusted peers. Default: true.
    pub zero_rtt: bool,
    /// TLS sessions remembered for resumption, over all peers. Default: 256.
    pub sessions: u32,
}

impl Default for QuicSettings {
    fn default() -> Self {
        Self {
            congestion: CongestionControl::default(),
            streams: 1024,
            uni_streams: 100,
            stream_window: ByteSize::mib(2),
            window: ByteSize::mib(128),
            send_window: ByteSize::mib(8),
            initial_window: ByteSize::kib(64),
            idle_timeout: Duration::from_secs(30),
            path_silence: Duration::from_secs(3),
            keep_alive: Duration::from_secs(5),
            socket_buffer: ByteSize::mib(7),
            cipher: TlsCipher::Auto,
            ack_frequency: true,
            ack_delay: Duration::from_millis(1),
            ack_every: 2,
            gso: true,
            mtu_discovery: true,
            mtu_max: 1452,
            max_paths: 8,
            zero_rtt: true,
            sessions: 256,
        }
    }
}

impl QuicSettings {
    /// Each setting and its value, as the file writes them.
    pub(super) fn values(&self) -> [(&'static str, String); 21] {
        let text = |text: &dyn fmt::Display| format!("\"{text}\"");
        let time = |time: Duration| text(&humantime::format_duration(time));
        let yes = |yes: bool| format!("#{yes}");
        [
            ("quic.congestion", text(&self.congestion.name())),
            ("quic.streams", self.streams.to_string()),
            ("quic.uni-streams", self.uni_streams.to_string()),
            ("quic.stream-window", text(&self.stream_window)),
            ("quic.window", text(&self.window)),
            ("quic.send-window", text(&self.send_window)),
            ("quic.initial-window", text(&self.initial_window)),
            ("quic.idle-timeout", time(self.idle_timeout)),
            ("quic.path-silence", time(self.path_silence)),
            ("quic.keep-alive", time(self.keep_alive)),
            ("quic.socket-buffer", text(&self.socket_buffer)),
            ("quic.cipher", text(&self.cipher.name())),
            ("quic.ack-frequency", yes(self.ack_frequency)),
            ("quic.ack-delay", time(self.ack_delay)),
            ("quic.ack-every", self.ack_every.to_string()),
            ("quic.gso", yes(self.gso)),
            ("quic.mtu-discovery", yes(self.mtu_discovery)),
            ("quic.mtu-max", self.mtu_max.to_string()),
            ("quic.max-paths", self.max_paths.to_string()),
            ("quic.zero-rtt", yes(self.zero_rtt)),
            ("quic.sessions", self.sessions.to_string()),
        ]
    }
}

/// A congestion control.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CongestionControl {
    /// CUBIC; BBR for good on a path where packets are lost and no queue explains it.
    #[default]
    Auto,
    /// CUBIC (RFC 9438): slows down for each loss. The better one where a loss means a full queue.
    Cubic,
    /// BBR, third version (draft-ietf-ccwg-bbr): models the path's rate and round trip. The better
    /// one where packets are lost by chance.
    Bbr,
}

impl CongestionControl {
    /// The name, as written in the file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Cubic => "cubic",
            Self::Bbr => "bbr",
        }
    }
}

impl FromStr for CongestionControl {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Self::Auto),
            "cubic" => Ok(Self::Cubic),
            "bbr" => Ok(Self::Bbr),
            _ => Err("expected auto, cubic or bbr"),
        }
    }
}

/// A cipher of TLS 1.3.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum TlsCipher {
    /// AES-128-GCM where the processor has instructions for it, ChaCha20-Poly1305 elsewhere.
    #[default]
    #[serde(rename = "auto")]
    Auto,
    /// `TLS_AES_128_GCM_SHA256`.
    #[serde(rename = "aes-128-gcm")]
    Aes128,
    /// `TLS_AES_256_GCM_SHA384`.
    #[serde(rename = "aes-256-gcm")]
    Aes256,
    /// `TLS_CHACHA20_POLY1305_SHA256`.
    #[serde(rename = "chacha20-poly1305")]
    Chacha20,
}

impl TlsCipher {
    /// The one that this processor offers first for the setting: never [`TlsCipher::Auto`].
    pub(crate) fn first(self) -> Self {
        match self {
            Self::Auto if has_aes() => Self::Aes128,
            Self::Auto => Self::Chacha20,
            chosen => chosen,
        }
    }

    /// The cipher suite that this processor offers first for the setting: its number at IANA (RFC 8446, B.4) and its name.
    pub(crate) fn suite(self) -> (u16, &'static str) {
        match self.first() {
            Self::Aes128 => (0x1301, "TLS13_AES_128_GCM_SHA256"),
            Self::Aes256 => (0x1302, "TLS13_AES_256_GCM_SHA384"),
            Self::Auto | Self::Chacha20 => (0x1303, "TLS13_CHACHA20_POLY1305_SHA256"),
        }
    }

    /// The name, as written in the file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Aes128 => "aes-128-gcm",
            Self::Aes256 => "aes-256-gcm",
            Self::Chacha20 => "chacha20-poly1305",
        }
    }
}

impl FromStr for TlsCipher {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        [Self::Auto, Self::Aes128, Self::Aes256, Self::Chacha20]
            .into_iter()
            .find(|cipher| cipher.name() == text)
            .ok_or("expected auto, aes-128-gcm, aes-256-gcm or chacha20-poly1305")
    }
}

/// A number of bytes, written with its unit: `"512KiB"`, `"32MiB"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(u64);

impl ByteSize {
    /// Nothing.
    pub const ZERO: Self = Self(0);

    /// So many kibibytes.
    #[must_use]
    pub const fn kib(number: u16) -> Self {
        Self((number as u64) << 10)
    }

    /// So many mebibytes.
    #[must_use]
    pub const fn mib(number: u16) -> Self {
        Self((number as u64) << 20)
    }

    /// So many gibibytes.
    #[must_use]
    pub const fn gib(number: u16) -> Self {
        Self((number as u64) << 30)
    }

    /// In bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// In bytes, for what takes no more than 32 bits.
    #[must_use]
    pub fn bytes_u32(self) -> u32 {
        u32::try_from(self.0).unwrap_or(u32::MAX)
    }
}

/// Units of [`ByteSize`], the largest first.
const UNITS: [(&str, u64); 5] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("B", 1),
];

impl FromStr for ByteSize {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let unit = UNITS
            .iter()
            .find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, bytes)));
        let size = unit
            .and_then(|(number, bytes)| number.trim_end().parse::<u64>().ok()?.checked_mul(*bytes));
        size.map(Self)
            .ok_or("expected a number with its unit, for example \"512KiB\" or \"32MiB\"")
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = UNITS
            .iter()
            .find(|(_, bytes)| self.0.is_multiple_of(*bytes));
        let (unit, bytes) = whole.filter(|_| self.0 > 0).unwrap_or(&("B", 1));
        write!(f, "{}{unit}", self.0 / bytes)
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Whether this processor has instructions for AES and for GCM's multiplication, which ring then uses.
pub(super) fn has_aes() -> bool {
    #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
    {
        std::arch::is_x86_feature_detected!("aes")
            && std::arch::is_x86_feature_detected!("pclmulqdq")
    }
    #[cfg(target_arch = "aarch64")]
    {
        std::arch::is_aarch64_feature_detected!("aes")
            && std::arch::is_aarch64_feature_detected!("pmull")
    }
    #[cfg(not(any(target_arch = "x86", target_arch = "x86_64", target_arch = "aarch64")))]
    {
        false
    }
}
