//! Whether a command printed what a page shows.
//!
//! What differs each time is put out of both first: keys, tickets, ports that the system chose, addresses of machines, process ids,
//! times, sizes, rates and dates. Blanks count as one, because columns are as wide as what stands in them.

use std::{borrow::Cow, collections::BTreeMap, sync::LazyLock};

use regex::{Captures, Regex};

/// What is put out, and what stands for it.
static MASKS: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
    let masks = [
        (r"\bhail1[a-z0-9]{20,}", "‹ticket›"),
        (r"\b[ybndrfg8ejkmcpqxot1uwisza345h769]{52}\b", "‹key›"),
        (
            r"\b\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d)?(\.\d+)?Z?)?\b",
            "‹date›",
        ),
        (
            r":(3276[89]|327[7-9]\d|32[89]\d\d|3[3-9]\d{3}|[4-6]\d{4})\b",
            ":‹port›",
        ),
        (r"\b(192|198|203|10|172)\.\d+\.\d+\.\d+\b", "‹ip›"),
        (r"\b(process|pid) +\d+\b", "$1 ‹pid›"),
        (r"\b\d+(\.\d+)? ?(ns|µs|us|ms|s|min|m|h|d)\b", "‹time›"),
        (r"\b\d+(\.\d+)? ?([kKMG]i?B|B|[kMG]bit)(/s)?\b", "‹size›"),
        (r"‹time›( ‹time›)+", "‹time›"),
        (r"\s+", " "),
    ];
    let compiled = masks.into_iter();
    compiled
        .map(|(mask, by)| (Regex::new(mask).unwrap(), by))
        .collect()
});

/// A word that a page abbreviates.
static ABBREVIATED: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"[A-Za-z0-9_./:-]{6,}…").unwrap());

/// The abbreviated words of a page, and what came in their places.
#[derive(Debug, Default)]
pub(super) struct Bindings(BTreeMap<String, String>);

impl Bindings {
    /// A command with the whole words in place of the abbreviated.
    ///
    /// # Errors
    ///
    /// Where nothing printed such a word before.
    pub(super) fn filled(&self, command: &str) -> Result<String, String> {
        let filled = self.known(command);
        match ABBREVIATED.find(&filled) {
            Some(word) => Err(format!("no command printed {} before", word.as_str())),
            None => Ok(filled.into_owned()),
        }
    }

    fn known<'a>(&self, text: &'a str) -> Cow<'a, str> {
        ABBREVIATED.replace_all(text, |word: &Captures<'_>| {
            let bound = self.0.get(&word[0]).map(String::as_str);
            bound.unwrap_or(&word[0]).to_owned()
        })
    }

    /// Compares the whole output.
    pub(super) fn compare(&mut self, expected: &[String], out: &str) -> Result<(), String> {
        let actual: Vec<&str> = out.trim_end().lines().collect();
        self.lines(expected, &actual, false)
    }

    /// The same of a command that may go on to print.
    pub(super) fn compare_beginning(
        &mut self,
        expected: &[String],
        out: &str,
    ) -> Result<(), String> {
        let actual: Vec<&str> = out.lines().collect();
        self.lines(expected, &actual, true)
    }

    fn lines(&mut self, expected: &[String], actual: &[&str], more: bool) -> Result<(), String> {
        let Some((first, rest)) = expected.split_first() else {
            return match actual.first() {
                Some(line) if !more => Err(format!("the page does not show: {line}")),
                _ => Ok(()),
            };
        };
        if first.trim() == "…" {
            let mut last = Err(String::new());
            for begin in 0..=actual.len() {
                last = self.lines(rest, actual.get(begin..).unwrap_or_default(), more);
                if last.is_ok() {
                    break;
                }
            }
            return last;
        }
        let Some((line, behind)) = actual.split_first() else {
            return Err(format!("it did not print: {first}"));
        };
        let bound = self
            .line(first, line)
            .ok_or_else(|| format!("the page: {first}\nprinted:  {line}"))?;
        let before = self.0.clone();
        self.0.extend(bound);
        let compared = self.lines(rest, behind, more);
        if compared.is_err() {
            self.0 = before;
        }
        compared
    }

    /// What a line binds, where it is as the page shows it.
    fn line(&self, expected: &str, actual: &str) -> Option<Vec<(String, String)>> {
        let expected = self.known(expected);
        let mut pattern = String::from("^");
        let mut words = Vec::new();
        let mut at = 0;
        for word in ABBREVIATED.find_iter(&expected) {
            pattern += &literal(&expected[at..word.start()]);
            // As many letters of it as name its kind.
            let kind = word.as_str().starts_with("hail1").then_some("hail1");
            pattern += &format!("({}[^\\s()]+)", kind.unwrap_or_default());
            words.push(word.as_str().to_owned());
            at = word.end();
        }
        pattern += &literal(&expected[at..]);
        pattern.push('$');
        let pattern = Regex::new(&pattern).unwrap();
        // What an abbreviated word stands for is wanted as it is.
        let whole = pattern.captures(actual.trim_end());
        let masked = mask(actual.trim_end());
        let found = whole.or_else(|| pattern.captures(&masked))?;
        let bound = found.iter().skip(1).flatten().map(|word| word.as_str());
        let bound: Vec<_> = words.into_iter().zip(bound.map(str::to_owned)).collect();
        // A masked word cannot be used later.
        Some(
            bound
                .into_iter()
                .filter(|(_, word)| !word.contains('‹'))
                .collect(),
        )
    }
}

/// Text of a page between abbreviated words, as a pattern for what was printed, masked or not.
fn literal(text: &str) -> String {
    let masked = mask_inner(text);
    let parts = masked.split('…').map(|part| {
        let escaped = regex::escape(part);
        // Where nothing else is masked, blanks still are.
        escaped.replace(' ', r"\s+")
    });
    parts.collect::<Vec<_>>().join(".*")
}

fn mask(text: &str) -> String {
    mask_inner(text.trim_end())
}

fn mask_inner(text: &str) -> String {
    let mut out = text.to_owned();
    for (mask, by) in MASKS.iter() {
        out = mask.replace_all(&out, *by).into_owned();
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn same(page: &str, printed: &str) -> bool {
        let lines: Vec<String> = page.lines().map(str::to_owned).collect();
        Bindings::default().compare(&lines, printed).is_ok()
    }

    #[test]
    fn what_differs_each_time_is_not_compared_and_what_is_said_is() {
        let page = "laptop: 553 µs, direct 192.168.1.20:60360, 2 tunnels";
        assert!(same(
            page,
            "laptop: 1.2 ms, direct 10.0.0.7:40001, 2 tunnels\n"
        ));
        assert!(!same(
            page,
            "laptop: 1.2 ms, direct 10.0.0.7:40001, 3 tunnels"
        ));
        assert!(!same(
            page,
            "laptop: 1.2 ms, direct 10.0.0.7:7443, 2 tunnels"
        ));
        assert!(!same("at port 8080", "at port 9090"));
        assert!(same("A      B\nword   1", "A B\nword 1\n"));
        assert!(!same("one", "one\ntwo"));
        assert!(!same("one\ntwo", "one"));
    }

    #[test]
    fn an_ellipsis_is_any_text_or_any_lines() {
        assert!(same("one\n…\nend of … here", "one\n2\n3\nend of it here"));
        assert!(same("one\n…", "one"));
        assert!(!same("one\n…\nend", "one\n2"));
    }

    #[test]
    fn an_abbreviated_word_stands_for_what_came_there() {
        let mut bindings = Bindings::default();
        assert!(bindings.filled("hail join hail1agc2i…").is_err());
        let page = ["hail1agc2i…".to_owned()];
        assert!(bindings.compare(&page, "something else\n").is_err());
        let ticket = "hail1zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz";
        bindings.compare(&page, &format!("{ticket}\n")).unwrap();
        let command = bindings.filled("hail join hail1agc2i…").unwrap();
        assert_eq!(command, format!("hail join {ticket}"));
    }
}
