//! The parser of suites.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::shipped;
use crate::cli::Size;
use crate::error::{DEEPEST_SUITE, SuiteError};

/// A suite as TOML.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SuiteFile {
    title: String,
    /// Suites that come first: built-in ones, or files beside this one.
    #[serde(default)]
    include: Vec<String>,
    #[serde(default)]
    test: Vec<SuiteEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SuiteEntry {
    name: String,
    /// The words of a command line, after `stride-perf`.
    run: String,
    /// The test runs once for each size, with -s.
    #[serde(default)]
    sizes: Vec<String>,
    /// Further words that not every machine supports: where they are not supported, the test is
    /// skipped.
    needs: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SuiteTest {
    pub(super) name: String,
    pub(super) words: Vec<String>,
    pub(super) needs: Vec<String>,
}

/// A parsed suite.
#[derive(Debug)]
pub(super) struct Suite {
    pub(super) title: String,
    pub(super) tests: Vec<SuiteTest>,
}

/// Reads the built-in suite of this name, or else the file.
pub(super) fn read(name: &str) -> Result<Suite, SuiteError> {
    let mut tests = Vec::new();
    let title = read_into(&mut tests, name, Path::new(""), DEEPEST_SUITE)?;
    if tests.is_empty() {
        return Err(SuiteError::Empty { suite: name.to_owned() });
    }
    for (index, SuiteTest { name, .. }) in tests.iter().enumerate() {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
        let is_new = tests[..index].iter().all(|other| other.name != *name);
        if name.is_empty() || !name.chars().all(is_plain) || !is_new {
            return Err(SuiteError::Name { name: name.clone() });
        }
    }
    Ok(Suite { title, tests })
}

fn read_into(
    tests: &mut Vec<SuiteTest>,
    name: &str,
    folder: &Path,
    depth: u32,
) -> Result<String, SuiteError> {
    let Some(depth) = depth.checked_sub(1) else {
        return Err(SuiteError::TooDeep { suite: name.to_owned() });
    };
    let (text, folder) = match shipped::find(name) {
        Some(text) => (text.to_owned(), PathBuf::new()),
        None => {
            let path = folder.join(name);
            let text = fs::read_to_string(&path);
            let folder = path.parent().map(Path::to_owned).unwrap_or_default();
            (text.map_err(|source| SuiteError::Read { path, source })?, folder)
        }
    };
    let SuiteFile { title, include, test } = toml::from_str(&text).map_err(|error: toml::de::Error| {
        let line = error.span().map(|span| 1 + text[..span.start.min(text.len())].matches('\n').count());
        let place = line.map(|line| format!("line {line}: ")).unwrap_or_default();
        SuiteError::Syntax { suite: name.to_owned(), reason: format!("{place}{}", error.message()) }
    })?;
    for other in &include {
        read_into(tests, other, &folder, depth)?;
    }
    for entry in test {
        tests.append(&mut entry.tests()?);
    }
    Ok(title)
}

impl SuiteEntry {
    fn tests(self) -> Result<Vec<SuiteTest>, SuiteError> {
        let split = |words: &str| words.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let Self { name, run, sizes, needs } = self;
        let (words, needs) = (split(&run), needs.as_deref().map(split).unwrap_or_default());
        if sizes.is_empty() {
            return Ok(vec![SuiteTest { name, words, needs }]);
        }
        let of_size = |size: &String| {
            if let Err(source) = size.parse::<Size>() {
                return Err(SuiteError::Size { test: name.clone(), given: size.clone(), source });
            }
            let words = [words.clone(), vec!["-s".to_owned(), size.clone()]].concat();
            Ok(SuiteTest { name: format!("{name}-{size}"), words, needs: needs.clone() })
        };
        sizes.iter().map(of_size).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses the text of a suite file.
    fn of(text: &str) -> Result<Suite, SuiteError> {
        let path = std::env::temp_dir().join(format!(
            "stride-suite-{}-{:?}.toml",
            std::process::id(),
            std::thread::current().id()
        ));
        fs::write(&path, text).unwrap();
        let suite = read(path.to_str().unwrap());
        fs::remove_file(path).unwrap();
        suite
    }

    fn wrong(text: &str) -> String {
        of(text).unwrap_err().to_string()
    }

    #[test]
    fn a_test_is_a_command_line_and_one_for_each_size() {
        let suite =
            of("title = \"t\"\n[[test]]\nname = \"a\"\nrun = \"write  bw -n 5\"\nneeds = \"--use-cuda 0\"\n\
             [[test]]\nname = \"b\"\nrun = \"read lat\"\nsizes = [\"4K\", \"8\"]\n")
            .unwrap();
        let words = |words: &str| words.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(suite.title, "t");
        assert_eq!(
            suite.tests,
            [
                SuiteTest {
                    name: "a".to_owned(),
                    words: words("write bw -n 5"),
                    needs: words("--use-cuda 0")
                },
                SuiteTest { name: "b-4K".to_owned(), words: words("read lat -s 4K"), needs: Vec::new() },
                SuiteTest { name: "b-8".to_owned(), words: words("read lat -s 8"), needs: Vec::new() },
            ]
        );
    }

    #[test]
    fn an_invalid_suite_is_refused_with_its_line() {
        for (text, words) in [
            ("title = 5", "line 1"),
            ("title = \"t\"\n[[test]]\nname = \"a\"\nruns = \"x\"\n", "line 4: unknown field `runs`"),
            ("[[test]]\nname = \"a\"\nrun = \"x\"\n", "missing field `title`"),
            ("title = \"t\"\n", "has no test"),
            ("title = \"t\"\n[[test]]\nname = \"a b\"\nrun = \"x\"\n", "the test name `a b`"),
            (
                "title = \"t\"\n[[test]]\nname = \"a\"\nrun = \"x\"\n[[test]]\nname = \"a\"\nrun = \"y\"\n",
                "of its own",
            ),
            ("title = \"t\"\n[[test]]\nname = \"a\"\nrun = \"x\"\nsizes = [\"4KB\"]\n", "4KB of `sizes`"),
            ("title = \"t\"\ninclude = [\"nowhere.toml\"]\n", "cannot read the suite"),
        ] {
            let error = wrong(text);
            assert!(error.contains(words), "no `{words}` in {error}");
        }
        assert!(read("/nowhere.toml").unwrap_err().to_string().contains("suite --list"));
    }

    #[test]
    fn suites_include_others_but_not_themselves() {
        let own = std::env::temp_dir().join(format!("stride-suite-own-{}.toml", std::process::id()));
        let name = own.file_name().unwrap().to_str().unwrap();
        fs::write(&own, format!("title = \"t\"\ninclude = [\"blog-bw\", \"{name}\"]\n")).unwrap();
        let error = read(own.to_str().unwrap()).unwrap_err().to_string();
        fs::remove_file(&own).unwrap();
        assert!(error.contains("more than 8 deep"), "{error}");
        let all = read("alluxio-all").unwrap();
        assert_eq!(all.tests.len(), 6 + 6 + 6);
        let names: Vec<_> = all.tests.iter().map(|test| test.name.as_str()).collect();
        assert_eq!((names[0], names[17]), ("basic-write-4K", "stress-read-1M"));
    }

    #[test]
    fn all_that_are_shipped_are_listed_and_can_be_read() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("suites");
        let mut files: Vec<_> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        files.sort();
        let mut names: Vec<_> = shipped::SHIPPED.iter().map(|(name, _)| format!("{name}.toml")).collect();
        names.sort();
        assert_eq!(files, names);
        for (name, _) in shipped::SHIPPED {
            assert!(!read(name).unwrap().tests.is_empty(), "{name}");
        }
    }
}
