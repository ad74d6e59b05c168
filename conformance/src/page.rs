//! The committed page of what SoftRoCE lacks and does otherwise: `docs/soft-rnic-conformance.md`.
//!
//! Each case says, on whichever device it runs, where SoftRoCE is excused. A run of all cases holds the page to that: it names every
//! such case, and no others.

use std::collections::BTreeSet;

use test_harness::Told;

use crate::table::matches;

const PAGE: &str = include_str!("../../docs/soft-rnic-conformance.md");

/// Above it are the cases of what SoftRoCE lacks, which only SoftRoCE can tell.
const WRONG: &str = "\n## Where SoftRoCE is wrong\n";

/// Whether the page is what the cases told; prints what is not.
pub(crate) fn holds(told: &[Told], on_softroce: bool) -> bool {
    let complaints = complaints(PAGE, told, on_softroce);
    complaints.iter().for_each(|what| eprintln!("docs/soft-rnic-conformance.md {what}"));
    complaints.is_empty()
}

/// Prints where the cases excuse SoftRoCE.
pub(crate) fn print(told: &[Told]) {
    let different: Vec<_> = told.iter().filter(|case| !case.remarks.is_empty()).collect();
    for case in &different {
        println!("{}: {}", case.name, case.remarks.join("; "));
    }
    println!("{} of {} cases excuse SoftRoCE", different.len(), told.len());
}

fn complaints(page: &str, told: &[Told], on_softroce: bool) -> Vec<String> {
    let (lacks, wrong) = page.split_once(WRONG).unwrap_or((page, ""));
    let (lacks, wrong) = (patterns(lacks), patterns(wrong));
    let is_named = |case: &&Told| lacks.iter().chain(&wrong).any(|pattern| matches(pattern, name(case)));
    // Other devices have what SoftRoCE lacks, so that a case is not skipped there, and does not say more than its name.
    let needs = |case: &Told| !case.remarks.is_empty() || on_softroce && case.skipped.is_some();
    let has = |pattern: &str, need: &dyn Fn(&Told) -> bool| {
        told.iter().any(|case| matches(pattern, name(case)) && need(case))
    };
    let missing = told.iter().filter(|case| needs(case)).filter(|case| !is_named(case)).map(|case| {
        let reasons: Vec<_> = case.remarks.iter().chain(&case.skipped).map(String::as_str).collect();
        format!("lacks {} ({})", name(case), reasons.join("; "))
    });
    let stale = |pattern: &&&str| !has(pattern, &needs);
    let unknown = |pattern: &&&str| if on_softroce { stale(pattern) } else { !has(pattern, &|_| true) };
    let needless = lacks.iter().filter(unknown).chain(wrong.iter().filter(stale));
    let needless = needless.map(|pattern| format!("names {pattern}, which no case needs"));
    // Each flavour of a case says the same.
    missing.chain(needless).collect::<BTreeSet<_>>().into_iter().collect()
}

/// A case's name without its flavour.
fn name(case: &Told) -> &str {
    case.name.split('[').next().unwrap_or_default()
}

/// What a part of the page names: `module::name`, with an asterisk for any part of it.
fn patterns(text: &str) -> Vec<&str> {
    let quoted = text.split('`').skip(1).step_by(2);
    quoted.filter(|words| words.contains("::") && !words.contains(' ') && !words.ends_with("::")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        "`man b` `test --test system ud::`\n| `m::lacks_*` |\n## Where SoftRoCE is wrong\n| `m::w*g` |\n";

    fn told(name: &str, skipped: Option<&str>, remark: Option<&str>) -> Told {
        let (skipped, remarks) = (skipped.map(str::to_owned), remark.map(str::to_owned));
        Told { name: name.to_owned(), skipped, remarks: remarks.into_iter().collect() }
    }

    #[test]
    fn the_page_names_what_the_cases_say() {
        let cases =
            [told("m::lacks_a[classic]", None, None), told("m::wrong[extended]", None, Some("drops it"))];
        assert!(complaints(TEXT, &cases, false).is_empty());
        let skipped = [told("m::lacks_a", Some("has none"), None), told("m::wrong", Some("drops it"), None)];
        assert!(complaints(TEXT, &skipped, true).is_empty());
    }

    #[test]
    fn a_case_that_the_page_lacks_is_named_with_its_reason() {
        let [lacks, wrong] = [told("m::lacks_a", None, None), told("m::wrong", None, Some("drops it"))];
        let new = told("m::new[classic]", None, Some("stays"));
        let cases = [lacks.clone(), wrong.clone(), new];
        assert_eq!(complaints(TEXT, &cases, false), ["lacks m::new (stays)"]);
        let skipped = [
            Told { skipped: Some("has none".to_owned()), ..lacks },
            wrong,
            told("m::b", Some("is old"), None),
        ];
        assert_eq!(complaints(TEXT, &skipped, true), ["lacks m::b (is old)"]);
    }

    #[test]
    fn what_no_case_needs_is_not_on_the_page() {
        let cases = [told("m::lacks_a", None, None), told("m::wrong", None, None)];
        assert_eq!(complaints(TEXT, &cases, false), ["names m::w*g, which no case needs"]);
        let both = ["names m::lacks_*, which no case needs", "names m::w*g, which no case needs"];
        assert_eq!(complaints(TEXT, &cases, true), both);
        assert_eq!(complaints(TEXT, &[], false), both);
    }
}
