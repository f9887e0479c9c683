//! The promises that the fuzz target `waf` checks, with inputs drawn from a seed: `HAILWIRE_SEED` and `HAILWIRE_ROUNDS` choose others.

use rand_pcg::rand_core::Rng as _;

#[path = "../../../../fuzz/src/kept.rs"]
mod kept;
#[path = "../../../../fuzz/src/waf.rs"]
mod promises;

const WORDS: [&[u8]; 50] = [
    b"<a>",
    b"</a>",
    b"<b/>",
    b"<a b='",
    b"'>",
    b"<![CDATA[",
    b"]]>",
    b"]]",
    b"<!-- ",
    b"-->",
    b"--",
    b"<?xml encoding='utf-7'",
    b"?>",
    b"<!DOCTYPE a [",
    b"]>",
    b"<!ENTITY x \"",
    b"\"",
    b"&x;",
    b"&#x27;",
    b"&#39",
    b"&amp;",
    b"\r\n--b\r\n",
    b"--b\r\n",
    b"\n--b--",
    b"Content-Disposition: form-data; name=q\r\n",
    b"; filename=\"x\\\"",
    b"Content-Type: application/json\r\n",
    b"Content-Transfer-Encoding: base64\r\n",
    b"\r\n\r\n",
    b"{\"",
    b"\":\"",
    b"\\u0027",
    b"\\ud83d",
    b"}",
    b"[",
    b"%27",
    b"%u0027",
    b"&",
    b"=",
    b"1' or '1'='1",
    b"; cat /etc/passwd",
    b"<script>alert(1)</script>",
    b"UNION SELECT a FROM b",
    b"\0",
    b"\xfe\xff",
    b"\xff\xfe",
    b"\xc3",
    b" ",
    b"\xef\xbb\xbf",
    b" \xf5\x10",
];

fn setting(name: &str, default: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn the_decision_on_a_body_does_not_depend_on_its_chunks() {
    let seed = setting("HAILWIRE_SEED", 1);
    let mut random = rand_pcg::Pcg64::new(u128::from(seed), 17);
    let mut below = |most: usize| random.next_u64() as usize % most;
    for _ in 0..setting("HAILWIRE_ROUNDS", 1_500) {
        let mut input = vec![below(256) as u8, below(256) as u8];
        // As wide as UTF-16 at times.
        let wide = below(12) == 0;
        for _ in 0..below(40) {
            for byte in WORDS[below(WORDS.len())] {
                input.push(*byte);
                if wide {
                    input.push(0);
                }
            }
        }
        promises::waf(&input);
    }
}

#[test]
fn decisions_on_bodies_that_a_fuzzer_found_do_not_depend_on_their_chunks() {
    let found: [&[u8]; 2] = [
        b"\x78\x00\xef\xbb\xbf<`=",
        b"\x02\x08<a><b>1</b> \xf5\x302</a>",
    ];
    for input in found {
        promises::waf(input);
    }
}

#[test]
fn what_is_kept_for_the_fuzz_target_is_judged_alike_however_it_is_cut() {
    for input in kept::inputs("waf", 300) {
        promises::waf(&input);
    }
}
