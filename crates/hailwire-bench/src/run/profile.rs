//! Where the processor's time goes (table Q11): samples of the serving process by `perf`, folded.
//!
//! `perf` is the system's own program; where it is missing or not allowed, the cells say so. Each sample
//! counts for the innermost function whose purpose is known. Stacks are kept, and drawn as a flame
//! graph.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use hailwire_wire::shown;

use super::ProcessPair;
use crate::{
    BenchError,
    suite::SHARES,
    work::{MeasuredWork, WorkRequest},
};

/// Samples a second.
const SAMPLES: &str = "499";

/// Bytes of stack kept with each sample.
const STACK: &str = "dwarf,8192";

/// How long `perf` may take until it samples; it does not say when it does.
const ATTACHES_WITHIN: Duration = Duration::from_millis(500);

/// Has work done while the serving process is sampled; shares in percent are the figures. The warm-up is
/// not sampled.
pub(super) async fn measure(
    pair: &mut ProcessPair,
    work: &WorkRequest,
    repeat: u32,
    dir: &Path,
) -> Result<MeasuredWork, BenchError> {
    if repeat == 0 {
        return pair.client.ask(work).await;
    }
    let name = pair.server.name().replace([' ', ','], "-");
    let samples =
        tempfile::NamedTempFile::new().map_err(BenchError::io("creating a temporary file"))?;
    let mut perf = Command::new("perf")
        .args(["record", "-q", "-F", SAMPLES, "--call-graph", STACK, "-p"])
        .arg(pair.server.pid().to_string())
        .arg("-o")
        .arg(samples.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|_| BenchError::Unsupported("the program `perf` was not found"))?;
    tokio::time::sleep(ATTACHES_WITHIN).await;
    let done = pair.client.ask(work).await;
    // SIGINT makes perf write its samples.
    let _ = Command::new("kill")
        .args(["-INT", &perf.id().to_string()])
        .status();
    let ended = perf.wait().map_err(BenchError::io("running perf"))?;
    done?;
    let script = Command::new("perf")
        .args(["script", "--no-inline", "-F", "comm,ip,sym", "-i"])
        .arg(samples.path())
        .stderr(Stdio::null())
        .output()
        .map_err(BenchError::io("running perf"))?;
    let folded = fold(&String::from_utf8_lossy(&script.stdout));
    if folded.is_empty() {
        let reason = if ended.code() == Some(255) || !ended.success() {
            "`perf` is not allowed to sample here"
        } else {
            "`perf` took no samples"
        };
        return Err(BenchError::Unsupported(reason));
    }
    keep(dir, &name, &folded)?;
    let mut measured = MeasuredWork::default();
    for (share, percent) in shares(&folded) {
        measured = measured.with(share, percent);
    }
    Ok(measured)
}

/// Stacks, outermost function first, with their samples.
type FoldedStacks = BTreeMap<Vec<String>, u64>;

/// Reads what `perf script` prints: a sample's head, its frames innermost first, an empty line.
fn fold(script: &str) -> FoldedStacks {
    let mut folded = FoldedStacks::new();
    let mut stack: Vec<String> = Vec::new();
    for line in script.lines().chain([""]) {
        let trimmed = line.trim();
        if trimmed.is_empty() {
            if !stack.is_empty() {
                stack.reverse();
                *folded.entry(std::mem::take(&mut stack)).or_default() += 1;
            }
        } else if line.starts_with([' ', '\t']) {
            let function = trimmed.split_once(' ').map_or(trimmed, |(_, rest)| rest);
            stack.push(short(function));
        }
    }
    folded
}

/// A function's name without its hash and offset.
fn short(function: &str) -> String {
    let name = function.split("+0x").next().unwrap_or(function);
    let name = match name.rfind("::h") {
        Some(at) if name.len() - at == 19 => &name[..at],
        _ => name,
    };
    name.replace(';', ":")
}

/// Substrings of function names and what such a function is for; the first match from the innermost frame counts.
const SIGNS: &[(&str, &[&str])] = &[
    (
        "crypto",
        &[
            "ring_core",
            "ring::",
            "aes_",
            "gcm",
            "chacha",
            "poly1305",
            "sha256",
            "sha512",
            "rustls",
            "x25519",
            "packet_crypto",
            "ghash",
        ],
    ),
    (
        "congestion control",
        &["congestion", "pacing", "bbr", "cubic"],
    ),
    (
        "packets",
        &[
            "sendmsg",
            "recvmsg",
            "sendmmsg",
            "recvmmsg",
            "udp_",
            "tcp_",
            "ip_",
            "__ip",
            "noq_udp",
            "skb",
            "net_rx",
            "netif",
            "packet_builder",
            "noq_proto::packet",
            "noq_proto::frame",
            "PacketBuilder",
            "transmit",
            "sock_",
            "loopback_xmit",
            "inet_",
            "h2::codec",
            "h2::frame",
            "writev",
            "tokio_rustls",
        ],
    ),
    (
        "streams",
        &[
            "streams",
            "SendStream",
            "RecvStream",
            "assembler",
            "send_buffer",
            "flow",
            "h2::proto",
        ],
    ),
    (
        "connections",
        &[
            "noq_proto::connection",
            "noq_proto::endpoint",
            "noq::",
            "iroh::",
            "h2::server",
            "h2::client",
            "hyper",
        ],
    ),
    ("application", &["hailwire", "service_fn", "tokio::"]),
];

/// Shares of all samples, in percent, for each of [`SHARES`].
fn shares(folded: &FoldedStacks) -> Vec<(&'static str, f64)> {
    let whole: u64 = folded.values().sum();
    let of = |stack: &[String]| {
        let signs = stack.iter().rev().find_map(|function| {
            let sign = |(_, words): &&(&str, &[&str])| words.iter().any(|w| function.contains(w));
            SIGNS.iter().find(sign)
        });
        signs.map_or("other", |(share, _)| *share)
    };
    let share = |name: &'static str| {
        let mine = folded.iter().filter(|(stack, _)| of(stack) == name);
        let samples: u64 = mine.map(|(_, count)| *count).sum();
        (name, samples as f64 / whole.max(1) as f64 * 100.0)
    };
    SHARES.map(share).to_vec()
}

fn keep(dir: &Path, name: &str, folded: &FoldedStacks) -> Result<(), BenchError> {
    let mut text = String::new();
    for (stack, count) in folded {
        let _ = writeln!(text, "{} {count}", stack.join(";"));
    }
    let write =
        |file: String, text: &str| fs::write(dir.join(&file), text).map_err(BenchError::io(file));
    write(format!("folded-{name}.txt"), &text)?;
    write(format!("flame-{name}.svg"), &flame(name, folded))
}

const WIDTH: f64 = 1200.0;
const ROW: usize = 17;
/// Frames narrower than this are not drawn.
const NARROWEST: f64 = 0.5;

/// A flame graph: width is the share of samples, the innermost function is on top.
fn flame(name: &str, folded: &FoldedStacks) -> String {
    let whole: u64 = folded.values().sum::<u64>().max(1);
    let deepest = folded.keys().map(Vec::len).max().unwrap_or(0);
    let height = (deepest + 2) * ROW;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"monospace\" \
         font-size=\"11\"><text x=\"4\" y=\"13\">{} · {whole} samples</text>\n",
        shown::html(name)
    );
    let stacks: Vec<(&[String], u64)> = folded.iter().map(|(s, c)| (s.as_slice(), *c)).collect();
    draw(&stacks, 0, 0.0, WIDTH / whole as f64, height, &mut out);
    out + "</svg>\n"
}

fn draw(
    stacks: &[(&[String], u64)],
    depth: usize,
    mut x: f64,
    scale: f64,
    height: usize,
    out: &mut String,
) {
    let mut rest = stacks;
    while let Some((first, _)) = rest.first() {
        let frame = first.get(depth);
        let end = rest
            .iter()
            .take_while(|(stack, _)| stack.get(depth) == frame)
            .count();
        let (same, others) = rest.split_at(end);
        let samples: u64 = same.iter().map(|(_, count)| *count).sum();
        let width = samples as f64 * scale;
        if let Some(frame) = frame
            && width >= NARROWEST
        {
            let y = height - (depth + 1) * ROW;
            let hue = 20 + frame.bytes().map(usize::from).sum::<usize>() % 40;
            let fits = (width / 6.7) as usize;
            let label: String = frame.chars().take(fits).collect();
            let label = if fits > 3 {
                shown::html(&label)
            } else {
                String::new()
            };
            let _ = writeln!(
                out,
                "<g><title>{}: {samples}</title><rect x=\"{x:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"16\" \
                 fill=\"hsl({hue} 80% 70%)\" stroke=\"white\" stroke-width=\"0.3\"/><text x=\"{:.1}\" y=\"{}\">{label}</text></g>",
                shown::html(frame),
                x + 2.0,
                y + 12
            );
            draw(same, depth + 1, x, scale, height, out);
        }
        x += width;
        rest = others;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRIPT: &str = "hail \n\t    7f01 aes_gcm_enc_update+0x10\n\t    7f02 noq_proto::connection::Connection::poll_transmit::h0123456789abcdef\n\t 7f03 main\n\nhail \n\t 7f04 memcpy\n\t 7f05 noq_proto::connection::streams::write\n\t 7f03 main\n\nhail \n\t 7f06 unknown\n";

    #[test]
    fn samples_are_folded_and_counted_for_the_innermost_function_that_tells() {
        let folded = fold(SCRIPT);
        assert_eq!(folded.len(), 3);
        let stack = [
            "main",
            "noq_proto::connection::Connection::poll_transmit",
            "aes_gcm_enc_update",
        ];
        assert_eq!(folded[&stack.map(String::from).to_vec()], 1);
        let shares: BTreeMap<_, _> = shares(&folded).into_iter().collect();
        for share in ["crypto", "streams", "other"] {
            assert!((shares[share] - 100.0 / 3.0).abs() < 1e-9, "{share}");
        }
        let svg = flame("<quic>", &folded);
        assert!(svg.contains("&lt;quic&gt; · 3 samples") && svg.ends_with("</svg>\n"));
    }

    #[test]
    fn nothing_folds_to_nothing() {
        assert!(fold("").is_empty());
    }
}
