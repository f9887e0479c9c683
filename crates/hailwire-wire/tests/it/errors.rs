//! The list of errors, `docs/reference/errors.md`: every error that the source makes, with its code, exit code and hint.
//!
//! `./x pages` writes it, or `HAIL_BLESS=1 cargo test --workspace --test it errors::`. The source is parsed, so an error that is
//! made in another way than by these constructors is not found: `Status::new`, the constructors of `CommandFailure` and of
//! `TextMistake`, and `#[error("…")]`.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path};

use hailwire_wire::Code;
use syn::{Attribute, Expr, ExprCall, ExprLit, ExprMethodCall, ItemMod, Lit, Macro, visit::Visit};

use crate::{links::collect, read, repository};

const PAGE: &str = "docs/reference/errors.md";

/// The crates whose errors a user of `hail` may see, with what each is about.
const CRATES: [(&str, &str); 11] = [
    ("hailwire-cli", "Commands"),
    ("hailwire-terminal", "All programs"),
    ("hailwire", "Nodes"),
    ("hailwire-core", "What a node decides"),
    (
        "hailwire-wire",
        "Addresses, tickets and what is on the wire",
    ),
    ("hailwire-hub", "Hubs"),
    ("hailwire-kdl", "Configuration files"),
    ("hailwire-pool", "Groups and pools"),
    ("hailwire-callout", "Inspection agents and proxies"),
    ("hailwire-agents", "The firewall and the rate limiter"),
    ("hailwire-lab", "Emulated networks"),
];

#[test]
fn the_list_of_errors_has_each_with_its_hint() {
    let page = listed();
    if std::env::var_os("HAIL_BLESS").is_some() {
        fs::write(repository(PAGE), &page).expect("a page to write");
    }
    let stale = "is stale: run HAIL_BLESS=1 cargo test --workspace --test it errors::";
    assert!(read(PAGE) == page, "{PAGE} {stale}");
}

#[test]
fn an_error_is_found_with_its_code_and_hint_and_none_of_the_tests() {
    let source = r#"
        fn one(name: &str) -> Status {
            Status::new(Code::NotFound, format!("no agent `{name}` of {}", 7)).with_hint("list them")
        }
        fn other() -> Result<(), CommandFailure> {
            work().map_err(|e| CommandFailure::io("cannot work", &e))?;
            Err(CommandFailure::usage("no").hint(format!("say {yes}")))
        }
        #[derive(Error)]
        enum Kind { #[error("it broke: {0}")] Broke(u8), #[error(transparent)] Other(Kind) }
        #[cfg(test)]
        mod tests { fn t() { Status::new(Code::Ok, "never"); } }
    "#;
    let errors = errors_of(source);
    let row = |error: &FoundError| {
        (
            error.message.clone(),
            error.code.clone(),
            error.hint.clone(),
        )
    };
    let rows: Vec<_> = errors.iter().map(row).collect();
    let expected = [
        ("no agent `{name}` of …", "not_found", "list them"),
        ("cannot work: …", "as the system says", ""),
        ("no", "invalid_argument", "say {yes}"),
        ("it broke: …", "", ""),
    ];
    let expected = expected.map(|(m, c, h)| (m.to_owned(), c.to_owned(), h.to_owned()));
    assert_eq!(rows, expected);
}

/// One error, as the source makes it.
struct FoundError {
    message: String,
    code: String,
    exit: String,
    hint: String,
}

fn listed() -> String {
    let mut page = "# Errors\n\n\
        Every error that the programs and the library make, with its code, the exit code of a command that fails with it, and its hint.\n\
        `{name}` stands for what the error names, `…` for a cause or a value. Where a cell says nothing, the code and the hint come from\n\
        where the error is passed on: a command's own page ([cli.md](cli.md)) and [exit-codes.md](exit-codes.md) say more, and a failure\n\
        without a hint of its own gets the one of its code. `./x pages` writes this page from the source.\n"
        .to_owned();
    for (package, about) in CRATES {
        let source = Path::new("crates").join(package).join("src");
        let mut files = Vec::new();
        collect(&repository(&source.display().to_string()), "rs", &mut files);
        files.retain(|file| !is_test(file));
        files.sort();
        let mut rows: BTreeMap<String, String> = BTreeMap::new();
        for file in files {
            let path = file.display().to_string();
            for error in errors_of(&read(&path)) {
                let cell = |text: &str| text.replace('|', "\\|").replace('\n', " ");
                let row = format!(
                    "| {} | {} | {} | {} |\n",
                    cell(&error.message),
                    error.code,
                    error.exit,
                    cell(&error.hint)
                );
                rows.insert(format!("{}{row}", error.message.to_lowercase()), row);
            }
        }
        let _ = write!(
            page,
            "\n## {about}\n\n| error | code | exit | hint |\n|---|---|---|---|\n"
        );
        rows.values().for_each(|row| page += row);
    }
    page
}

fn is_test(file: &Path) -> bool {
    file.components().any(|part| {
        let name = part.as_os_str().to_string_lossy();
        name.starts_with("tests") || name == "testing" || name == "virtual_nodes"
    })
}

fn errors_of(source: &str) -> Vec<FoundError> {
    let file = syn::parse_file(source).expect("a source file that compiles");
    let mut search = ErrorSearch::default();
    search.visit_file(&file);
    search.found
}

#[derive(Default)]
struct ErrorSearch {
    found: Vec<FoundError>,
    /// What the method calls around an expression say as its hint.
    hint: String,
}

impl<'ast> Visit<'ast> for ErrorSearch {
    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        if !module.attrs.iter().any(is_test_only) {
            syn::visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        if !function.attrs.iter().any(is_test_only) {
            syn::visit::visit_item_fn(self, function);
        }
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        if attribute.path().is_ident("error")
            && let Ok(list) = attribute.meta.require_list()
            && let Some(message) = first_literal(&list.tokens.to_string())
        {
            self.push(&message, None, None);
        }
    }

    fn visit_expr_method_call(&mut self, call: &'ast ExprMethodCall) {
        let method = call.method.to_string();
        if (method == "with_hint" || method == "hint")
            && let Some(hint) = call.args.first().and_then(text_of)
        {
            let outer = std::mem::replace(&mut self.hint, hint);
            self.visit_expr(&call.receiver);
            self.hint = outer;
            return;
        }
        syn::visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_call(&mut self, call: &'ast ExprCall) {
        let path = match &*call.func {
            Expr::Path(path) => path.path.segments.iter(),
            _ => return syn::visit::visit_expr_call(self, call),
        };
        let names: Vec<String> = path.map(|segment| segment.ident.to_string()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let text = |index: usize| call.args.get(index).and_then(text_of);
        match names.as_slice() {
            [.., "Status", "new"] => {
                if let Some(message) = text(1) {
                    self.push(&message, call.args.first().and_then(code_of), None);
                }
            }
            [.., "CommandFailure", "usage"] => {
                if let Some(message) = text(0) {
                    self.push(&message, Some(Code::InvalidArgument), Some("2"));
                }
            }
            [.., "CommandFailure", "general"] => {
                if let Some(message) = text(0) {
                    self.push(&message, None, Some("1"));
                }
            }
            [.., "CommandFailure", "io"] => {
                if let Some(message) = text(0) {
                    self.push(&format!("{message}: …"), None, Some("as the system says"));
                }
            }
            [.., "TextMistake", "at" | "of" | "in_value"] => {
                if let Some(message) = text(1) {
                    let message = format!("FILE:LINE:COLUMN: {message}");
                    self.push(&message, Some(Code::InvalidArgument), None);
                }
            }
            _ => {}
        }
        let outer = std::mem::take(&mut self.hint);
        syn::visit::visit_expr_call(self, call);
        self.hint = outer;
    }
}

impl ErrorSearch {
    fn push(&mut self, message: &str, code: Option<Code>, exit: Option<&str>) {
        let by_system = exit == Some("as the system says");
        let (name, number) = match code {
            Some(code) => (code.name(), (64 + u32::from(code.number())).to_string()),
            None if by_system => ("as the system says", String::new()),
            None => ("", String::new()),
        };
        self.found.push(FoundError {
            message: shown(message),
            code: name.to_owned(),
            exit: match exit {
                Some(_) if by_system => String::new(),
                Some(exit) => exit.to_owned(),
                None => number,
            },
            hint: shown(&self.hint),
        });
    }
}

fn is_test_only(attribute: &Attribute) -> bool {
    let tests = |list: &syn::MetaList| {
        list.tokens
            .to_string()
            .split(' ')
            .any(|word| word == "test")
    };
    attribute.path().is_ident("cfg") && attribute.meta.require_list().is_ok_and(tests)
        || attribute.path().is_ident("test")
}

/// `Code::NotFound` as the code that it is.
fn code_of(expr: &Expr) -> Option<Code> {
    let Expr::Path(path) = expr else { return None };
    let name = path.path.segments.last()?.ident.to_string();
    Code::ALL
        .into_iter()
        .find(|code| format!("{code:?}") == name)
}

/// A literal, or that of a `format!`, also behind `.to_owned()` and `&`.
fn text_of(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Lit(ExprLit {
            lit: Lit::Str(text),
            ..
        }) => Some(text.value()),
        Expr::Macro(made) if is_format(&made.mac) => first_literal(&made.mac.tokens.to_string()),
        Expr::MethodCall(call) => text_of(&call.receiver),
        Expr::Reference(reference) => text_of(&reference.expr),
        _ => None,
    }
}

fn is_format(made: &Macro) -> bool {
    made.path.is_ident("format")
}

/// The string literal with which these tokens begin.
fn first_literal(tokens: &str) -> Option<String> {
    let first = |input: syn::parse::ParseStream<'_>| {
        let text: syn::LitStr = input.parse()?;
        let _rest: proc_macro2::TokenStream = input.parse()?;
        Ok(text.value())
    };
    syn::parse::Parser::parse_str(first, tokens).ok()
}

/// A format string for people: what has no name is `…`, what has one stays in braces.
fn shown(format: &str) -> String {
    let mut out = String::new();
    let mut rest = format;
    while let Some(begin) = rest.find(['{', '}']) {
        let (before, from) = rest.split_at(begin);
        out += before;
        if let Some(after) = from.strip_prefix("{{").or_else(|| from.strip_prefix("}}")) {
            out.extend(from.chars().next());
            rest = after;
            continue;
        }
        let Some((inside, after)) = from.split_once('}') else {
            return out + from;
        };
        let name = inside
            .trim_start_matches('{')
            .split(':')
            .next()
            .unwrap_or_default();
        match name
            .chars()
            .next()
            .is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
            && !name.contains('.')
        {
            true => out += &format!("{{{name}}}"),
            false => out.push('…'),
        }
        rest = after;
    }
    out + rest
}
