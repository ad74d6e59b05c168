//! Checks the page of SoftRoCE's gaps and errors, `docs/soft-rnic-conformance.md`, against the
//! cases.
//!
//! Each case notes where it excuses SoftRoCE, on every device. After a run of all cases the page
//! must name exactly those cases.

use std::collections::BTreeSet;

use test_harness::CaseReport;

use crate::table::matches;

const PAGE: &str = include_str!("../../docs/soft-rnic-conformance.md");

/// The heading that separates the gaps, which only a run on SoftRoCE can confirm, from the errors.
const WRONG: &str = "\n## Where SoftRoCE is wrong\n";

/// Whether the page agrees with the reports; prints the differences.
pub(crate) fn is_current(reports: &[CaseReport], on_softroce: bool) -> bool {
    let complaints = complaints(PAGE, reports, on_softroce);
    complaints.iter().for_each(|what| eprintln!("docs/soft-rnic-conformance.md {what}"));
    complaints.is_empty()
}

/// Prints the notes of the cases that excuse SoftRoCE.
pub(crate) fn print(reports: &[CaseReport]) {
    let different: Vec<_> = reports.iter().filter(|case| !case.notes.is_empty()).collect();
    for case in &different {
        println!("{}: {}", case.name, case.notes.join("; "));
    }
    println!("{} of {} cases excuse SoftRoCE", different.len(), reports.len());
}

fn complaints(page: &str, reports: &[CaseReport], on_softroce: bool) -> Vec<String> {
    let (lacks, wrong) = page.split_once(WRONG).unwrap_or((page, ""));
    let (lacks, wrong) = (patterns(lacks), patterns(wrong));
    let is_named =
        |case: &&CaseReport| lacks.iter().chain(&wrong).any(|pattern| matches(pattern, name(case)));
    // Other devices have what SoftRoCE lacks. There such a case is not skipped and has no notes.
    let needs = |case: &CaseReport| !case.notes.is_empty() || on_softroce && case.skipped.is_some();
    let has = |pattern: &str, need: &dyn Fn(&CaseReport) -> bool| {
        reports.iter().any(|case| matches(pattern, name(case)) && need(case))
    };
    let missing = reports.iter().filter(|case| needs(case)).filter(|case| !is_named(case)).map(|case| {
        let reasons: Vec<_> = case.notes.iter().chain(&case.skipped).map(String::as_str).collect();
        format!("lacks {} ({})", name(case), reasons.join("; "))
    });
    let stale = |pattern: &&&str| !has(pattern, &needs);
    let unknown = |pattern: &&&str| if on_softroce { stale(pattern) } else { !has(pattern, &|_| true) };
    let needless = lacks.iter().filter(unknown).chain(wrong.iter().filter(stale));
    let needless = needless.map(|pattern| format!("lists {pattern}, which no case needs"));
    // The flavours of a case have the same notes, and the set removes the duplicates.
    missing.chain(needless).collect::<BTreeSet<_>>().into_iter().collect()
}

/// A case's name without its flavour.
fn name(case: &CaseReport) -> &str {
    case.name.split('[').next().unwrap_or_default()
}

/// The patterns in a part of the page: `module::name`, with asterisks as wildcards.
fn patterns(text: &str) -> Vec<&str> {
    let quoted = text.split('`').skip(1).step_by(2);
    quoted.filter(|words| words.contains("::") && !words.contains(' ') && !words.ends_with("::")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        "`man b` `test --test system ud::`\n| `m::lacks_*` |\n## Where SoftRoCE is wrong\n| `m::w*g` |\n";

    fn report(name: &str, skipped: Option<&str>, note: Option<&str>) -> CaseReport {
        let (skipped, notes) = (skipped.map(str::to_owned), note.map(str::to_owned));
        CaseReport { name: name.to_owned(), skipped, notes: notes.into_iter().collect() }
    }

    #[test]
    fn the_page_names_what_the_cases_say() {
        let cases =
            [report("m::lacks_a[classic]", None, None), report("m::wrong[extended]", None, Some("drops it"))];
        assert!(complaints(TEXT, &cases, false).is_empty());
        let skipped =
            [report("m::lacks_a", Some("has none"), None), report("m::wrong", Some("drops it"), None)];
        assert!(complaints(TEXT, &skipped, true).is_empty());
    }

    #[test]
    fn a_case_that_the_page_lacks_is_named_with_its_reason() {
        let [lacks, wrong] = [report("m::lacks_a", None, None), report("m::wrong", None, Some("drops it"))];
        let new = report("m::new[classic]", None, Some("stays"));
        let cases = [lacks.clone(), wrong.clone(), new];
        assert_eq!(complaints(TEXT, &cases, false), ["lacks m::new (stays)"]);
        let skipped = [
            CaseReport { skipped: Some("has none".to_owned()), ..lacks },
            wrong,
            report("m::b", Some("is old"), None),
        ];
        assert_eq!(complaints(TEXT, &skipped, true), ["lacks m::b (is old)"]);
    }

    #[test]
    fn an_entry_that_no_case_needs_is_refused() {
        let cases = [report("m::lacks_a", None, None), report("m::wrong", None, None)];
        assert_eq!(complaints(TEXT, &cases, false), ["lists m::w*g, which no case needs"]);
        let both = ["lists m::lacks_*, which no case needs", "lists m::w*g, which no case needs"];
        assert_eq!(complaints(TEXT, &cases, true), both);
        assert_eq!(complaints(TEXT, &[], false), both);
    }
}
