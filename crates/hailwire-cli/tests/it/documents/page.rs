//! The fenced blocks of a page, and the commands of a `console` block.

/// A fenced block.
#[derive(Debug, Default)]
pub(super) struct Block {
    /// Of its fence, from 1.
    pub(super) line: usize,
    /// The first word behind the fence.
    pub(super) language: String,
    /// The second: the file that it becomes, as `FILE` or `MACHINE:FILE`.
    pub(super) file: Option<String>,
    pub(super) text: String,
    /// Why it is not run.
    pub(super) not_run: Option<String>,
}

impl Block {
    pub(super) fn is_run(&self) -> bool {
        self.not_run.is_none()
    }
}

/// A command of a `console` block.
#[derive(Debug, Default)]
pub(super) struct Step {
    /// From 1, in the page.
    pub(super) line: usize,
    /// Whose prompt it has; empty for `$`.
    pub(super) machine: String,
    pub(super) command: String,
    /// Whether it goes on beside the others.
    pub(super) stays: bool,
    /// Whether the next command looks at its exit code.
    pub(super) may_fail: bool,
    pub(super) expected: Vec<String>,
}

const STAYS: &str = "# leave it running";

/// The blocks of a page, in order.
pub(super) fn blocks(page: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut open: Option<(Block, usize)> = None;
    let mut reason = None;
    for (number, line) in (1..).zip(page.lines()) {
        let text = line.trim_start();
        let indent = line.len() - text.len();
        let fence = text.strip_prefix("```");
        match (open.take(), fence) {
            (Some((block, _)), Some("")) => blocks.push(block),
            (Some((mut block, indent)), _) => {
                let cut = line.len() - text.len();
                block.text += line.get(indent.min(cut)..).unwrap_or_default();
                block.text.push('\n');
                open = Some((block, indent));
            }
            (None, Some(info)) => {
                let mut words = info.split_whitespace().map(str::to_owned);
                let block = Block {
                    line: number,
                    language: words.next().unwrap_or_default(),
                    file: words.next(),
                    text: String::new(),
                    not_run: reason.take(),
                };
                open = Some((block, indent));
            }
            (None, None) => {
                let comment = text.strip_prefix("<!-- not run: ");
                let found = comment.and_then(|rest| rest.strip_suffix(" -->"));
                if found.is_some() || !text.is_empty() {
                    reason = found.map(str::to_owned);
                }
            }
        }
    }
    assert!(open.is_none(), "a block has no end");
    blocks
}

/// A line's machine and command, where it begins with a prompt.
fn prompted(line: &str) -> Option<(&str, &str)> {
    let (machine, command) = line.split_once("$ ")?;
    let named = machine.chars().all(|c| c.is_ascii_lowercase());
    named.then(|| (machine, command.trim_start()))
}

/// The commands of a block.
///
/// # Errors
///
/// Where the block does not begin with a prompt.
pub(super) fn steps(block: &Block) -> Result<Vec<Step>, String> {
    let mut steps: Vec<Step> = Vec::new();
    let mut continued = false;
    for (line, text) in (block.line + 1..).zip(block.text.lines()) {
        let rest = text.strip_prefix("> ").filter(|_| {
            let last = steps.last();
            last.is_some_and(|step| step.expected.is_empty())
        });
        if let Some((machine, command)) = prompted(text).filter(|_| !continued) {
            let asks = command.starts_with("echo $?");
            if let Some(last) = steps.last_mut().filter(|_| asks) {
                last.may_fail = true;
            }
            steps.push(Step {
                line,
                machine: machine.to_owned(),
                command: command.to_owned(),
                ..Step::default()
            });
        } else {
            let Some(last) = steps.last_mut() else {
                return Err(format!("{line}: a console block begins with a prompt"));
            };
            match rest.or(continued.then_some(text)) {
                Some(more) => last.command += &format!("\n{more}"),
                None => last.expected.push(text.to_owned()),
            }
        }
        continued = steps.last().is_some_and(|step| {
            step.expected.is_empty() && step.command.trim_end().ends_with('\\')
        });
    }
    for step in &mut steps {
        step.stays = step.command.contains(STAYS);
        // An empty line is between two commands.
        while step
            .expected
            .last()
            .is_some_and(|line| line.trim().is_empty())
        {
            step.expected.pop();
        }
    }
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_has_its_language_its_file_and_its_reason() {
        let page = "text\n\n<!-- not run: no time -->\n\n```console\n$ a\n```\n\n  ```kdl desk:a.kdl\n  x {\n    y\n  }\n  ```\n";
        let [first, second] = &blocks(page)[..] else {
            panic!("two blocks");
        };
        assert_eq!((first.line, &*first.language), (5, "console"));
        assert_eq!(first.not_run.as_deref(), Some("no time"));
        assert_eq!(second.file.as_deref(), Some("desk:a.kdl"));
        assert_eq!(second.text, "x {\n  y\n}\n");
        assert!(second.is_run());
    }

    #[test]
    fn commands_have_machines_lines_and_output() {
        let text = "desk$ one \\\n    two\nout\n\ndesk$ $ not\n$ cat <<E\n> in\n> E\n$ x  # leave it running\n$ echo $?\n";
        let block = Block {
            text: text.to_owned(),
            ..Block::default()
        };
        let steps = steps(&block).unwrap();
        let commands: Vec<_> = steps.iter().map(|step| &*step.command).collect();
        assert_eq!(commands[0], "one \\\n    two");
        assert_eq!(commands[1..3], ["$ not", "cat <<E\nin\nE"]);
        assert_eq!(steps[0].expected, ["out"]);
        assert_eq!((&*steps[0].machine, &*steps[2].machine), ("desk", ""));
        assert!(steps[3].stays && steps[3].may_fail && !steps[2].may_fail);
    }
}
