//! Pages of `docs/generated/performance`: a run rewrites its own section and leaves the others
//! alone.

use std::path::Path;

use anyhow::Result;

/// The folder of the pages.
const FOLDER: &str = "docs/generated/performance";

/// The result of one `cargo xtask bench NAME`.
pub(super) struct Section<'a> {
    pub(super) name: &'a str,
    pub(super) title: &'a str,
    pub(super) intro: &'a str,
    pub(super) body: &'a str,
}

impl Section<'_> {
    /// Replaces the section that the last run wrote.
    pub(super) fn write(&self, root: &Path) -> Result<()> {
        let page = self.page();
        let path = root.join(&page);
        let old = std::fs::read_to_string(&path).unwrap_or_else(|_| self.heading());
        std::fs::create_dir_all(root.join(FOLDER))?;
        std::fs::write(&path, self.in_document(&old))?;
        println!("written to {page}");
        Ok(())
    }

    /// The subcommand of `cargo xtask bench`, all of whose runs share a page.
    fn subcommand(&self) -> &str {
        self.name.split(' ').next().unwrap_or(self.name)
    }

    fn page(&self) -> String {
        format!("{FOLDER}/{}.md", self.subcommand())
    }

    /// The beginning of a page that does not exist yet.
    fn heading(&self) -> String {
        format!(
            "# Results of `cargo xtask bench {}`\n\nWritten by the command; do not edit. \
             [The summary](../../performance.md) explains them.\n",
            self.subcommand()
        )
    }

    fn in_document(&self, old: &str) -> String {
        let Self { name, title, intro, body } = self;
        let (begin, end) = (
            format!("<!-- begin: cargo xtask bench {name} -->"),
            format!("<!-- end: cargo xtask bench {name} -->"),
        );
        let (intro, body) = (wrapped(intro), wrapped(body.trim_end()));
        let section = format!("{begin}\n## {title}\n\n{intro}\n\n{body}\n\n{end}");
        match (old.find(&begin), old.find(&end)) {
            (Some(from), Some(to)) if from < to => {
                format!("{}{section}{}", &old[..from], &old[to + end.len()..])
            }
            _ => format!("{}\n\n{section}\n", old.trim_end()),
        }
    }
}

/// Columns of a line of prose.
const COLUMNS: usize = 100;

/// The text with its lines of prose wrapped; rows of tables and commands stay whole.
pub(crate) fn wrapped(text: &str) -> String {
    text.lines().map(wrapped_line).collect::<Vec<_>>().join("\n")
}

fn wrapped_line(line: &str) -> String {
    if line.starts_with('|') || line.starts_with("    ") {
        return line.to_owned();
    }
    let indent = if line.starts_with("- ") { "\n  " } else { "\n" };
    let (mut text, mut column) = (String::new(), 0);
    for word in line.split(' ') {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > COLUMNS {
            text.push_str(indent);
            column = indent.len() - 1;
        } else if column > 0 {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += length;
    }
    text
}

/// The date in the format of POSIX `date`.
pub(super) fn today() -> String {
    super::programs::first_line(std::process::Command::new("date").arg("+%F"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_section_of_the_run_is_rewritten() {
        let section = |body| Section { name: "x", title: "T", intro: "I", body };
        let first = section("one").in_document("# Performance\n\nwords\n");
        assert!(first.starts_with("# Performance\n\nwords\n\n<!-- begin: cargo xtask bench x -->\n## T\n"));
        let second = section("two").in_document(&format!("{first}\nmore words\n"));
        assert!(second.contains("two") && !second.contains("one") && second.ends_with("-->\n\nmore words\n"));
        let long = "word ".repeat(30);
        assert!(wrapped(long.trim()).lines().all(|line| line.len() <= COLUMNS));
        assert_eq!(wrapped(&format!("| {long}|")).lines().count(), 1);
        let run = Section { name: "perftest bw-direct --operations read", title: "T", intro: "I", body: "B" };
        assert_eq!(run.page(), "docs/generated/performance/perftest.md");
    }
}
