//! Checks and renews the table of results for each verb and device,
//! `docs/generated/conformance.md`.
//!
//! A run of all cases recomputes its device's column. If the result differs from the committed
//! column, the run fails and writes the corrected page. So a change in the verbs covered or the
//! cases skipped shows up in a commit.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use test_harness::CaseReport;

/// A device, as a column of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Column {
    Inline,
    Deferred,
    RoceOld,
    RoceNew,
}

impl Column {
    const TITLES: [&str; 4] = ["soft0 inline", "soft0 deferred", "SoftRoCE old", "SoftRoCE new"];

    fn title(self) -> &'static str {
        Self::TITLES[self as usize]
    }
}

/// The prefix of connection manager functions, which no verb has.
const CM: &str = "rdma_";

const INTRODUCTION: &str = "\
# What passes where

The suite `conformance/` counts the cases of each function on each device. A case counts for the
function that it tests. [soft-rnic-conformance.md](../soft-rnic-conformance.md) explains the skipped
cases.

The suite writes this page, and fails when a column is out of date. SoftRoCE old is rdma-core 44
with kernel 6.1, new is 56.1 with 6.12.

";

/// The verbs and the cases about each.
const VERBS: &str = include_str!("../verbs.txt");

/// The verbs that no case is about, with the reason.
const WITHOUT: &[(&str, &str)] = &[
    (
        "`ibv_destroy_ah`, `ibv_dealloc_dmah`, `ibv_destroy_flow`, `ibv_destroy_flow_action`, `ibv_modify_flow_action_esp`, \
         `ibv_destroy_counters`, `ibv_attach_counters_point_flow`, `ibv_read_counters`, `ibv_modify_wq`, `ibv_destroy_wq`, \
         `ibv_destroy_rwq_ind_table`, `ibv_post_wq_recv`",
        "called by the cases that make these objects, or of objects that no device here supports",
    ),
    (
        "`ibv_destroy_comp_cntr`, `ibv_set_comp_cntr`, `ibv_set_err_comp_cntr`, `ibv_inc_comp_cntr`, `ibv_inc_err_comp_cntr`, \
         `ibv_read_comp_cntr`, `ibv_read_err_comp_cntr`, `ibv_qp_attach_comp_cntr`, `_ibv_query_comp_cntr_caps`",
        "of completion counters, which no device here supports; sideway tests them over a fake device",
    ),
    (
        "`ibv_wr_send_tso`, `ibv_wc_read_cvlan`, `ibv_wc_read_flow_tag`, `ibv_wc_read_tm_info`",
        "of raw packets, flows and tags, which no device here supports; the cases of `ibv_create_qp_ex` and \
         `ibv_create_cq_ex` check that they are refused",
    ),
    ("`ibv_fork_init`, `ibv_is_fork_initialized`", "process-wide and irrevocable; sideway tests them"),
    (
        "`ibv_dm_export_dmabuf_fd`, `ibv_export_buf_dmabuf_fd`",
        "memory of a software device is no dma-buf; sideway tests them over a fake device",
    ),
    (
        "`ibv_resolve_eth_l2_from_gid`",
        "asks the host's neighbours; `soft-rnic` tests it with the host's addresses",
    ),
    (
        "`_ibv_query_gid_ex`, `_ibv_query_gid_table`, `__ibv_get_device_list`, `___ibv_query_port`, `__ibv_reg_mr`, \
         `__ibv_reg_mr_iova`, `ibv_reg_mr_iova2`, `verbs_get_ctx`, `ibv_cq_ex_to_cq`, `ibv_is_qpt_supported`, \
         `ibv_flow_label_to_udp_sport`, `ibv_inc_rkey`, `ibv_wr_set_inline_data_list`",
        "internal functions of the header; `rdma-mummy-sys` tests them against the C header",
    ),
];

/// The same for the connection manager.
const WITHOUT_CM: &[(&str, &str)] = &[
    (
        "`rsocket`, `rbind`, `rlisten`, `raccept`, `rconnect`, `rshutdown`, `rclose`, `rrecv`, `rrecvfrom`, `rrecvmsg`, `rsend`, \
         `rsendto`, `rsendmsg`, `rread`, `rreadv`, `rwrite`, `rwritev`, `rpoll`, `rselect`, `rgetpeername`, `rgetsockname`, \
         `rsetsockopt`, `rgetsockopt`, `rfcntl`, `riomap`, `riounmap`, `riowrite`, `repoll_create`, `repoll_ctl`, `repoll_wait`",
        "sockets, which use the functions above",
    ),
    (
        "`rdma_seterrno`, `rdma_reg_msgs`, `rdma_reg_read`, `rdma_reg_write`, `rdma_dereg_mr`, `rdma_post_recvv`, \
         `rdma_post_sendv`, `rdma_post_readv`, `rdma_post_writev`, `rdma_post_recv`, `rdma_post_send`, `rdma_post_read`, \
         `rdma_post_write`, `rdma_post_ud_send`, `rdma_get_send_comp`, `rdma_get_recv_comp`",
        "inline functions over verbs; `rdma-mummy-sys` tests them against the C header",
    ),
];

/// A row for each verb: in each column, the count of passed cases and the reasons of the skipped
/// ones.
type Rows = BTreeMap<String, [String; 4]>;

/// Whether the device's column agrees with the committed page; prints the differences.
pub(crate) fn is_current(column: Column, reports: &[CaseReport]) -> bool {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/generated/conformance.md");
    let committed = fs::read_to_string(&page).unwrap_or_default();
    let verbs = verbs(VERBS);
    let wrong = wrong(&verbs, reports);
    if !wrong.is_empty() {
        wrong.iter().for_each(|what| eprintln!("conformance/verbs.txt: {what}"));
        return false;
    }
    let renewed = write(&renew(read(&committed), column, &verbs, reports));
    if renewed == committed {
        println!("docs/generated/conformance.md is up to date ({})", column.title());
        return true;
    }
    eprintln!("docs/generated/conformance.md is out of date ({}):", column.title());
    let lines = |page: &str| page.lines().map(str::to_owned).collect::<Vec<_>>();
    let (before, after) = (lines(&committed), lines(&renewed));
    before.iter().filter(|line| !after.contains(line)).for_each(|line| eprintln!("- {line}"));
    after.iter().filter(|line| !before.contains(line)).for_each(|line| eprintln!("+ {line}"));
    match leave(&renewed) {
        Ok(path) => eprintln!("if that is intended: cp {} docs/generated/conformance.md", path.display()),
        Err(error) => eprintln!("cannot write the corrected page: {error}"),
    }
    false
}

/// Writes the corrected page to a folder that the host of a virtual machine shares.
fn leave(page: &str) -> io::Result<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
    let folder = std::env::var_os("SOFTROCE_OUT").map_or(own, PathBuf::from);
    fs::create_dir_all(&folder)?;
    let path = folder.join("conformance.md");
    fs::write(&path, page)?;
    path.canonicalize()
}

/// Recomputes one column, and drops verbs that no column mentions.
fn renew(mut rows: Rows, column: Column, verbs: &Verbs, reports: &[CaseReport]) -> Rows {
    for cells in rows.values_mut() {
        cells[column as usize].clear();
    }
    for (verb, patterns) in verbs.iter() {
        let is_about = |case: &&CaseReport| patterns.iter().any(|pattern| matches(pattern, &case.name));
        let cases: Vec<&CaseReport> = reports.iter().filter(is_about).collect();
        rows.entry((*verb).to_owned()).or_default()[column as usize] = cell(&cases);
    }
    rows.retain(|_, cells| cells.iter().any(|cell| !cell.is_empty()));
    rows
}

/// The case patterns of each verb.
type Verbs<'a> = BTreeMap<&'a str, Vec<&'a str>>;

/// Parses `verbs.txt`.
fn verbs(text: &str) -> Verbs<'_> {
    let (mut verbs, mut last) = (Verbs::new(), "");
    for line in text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
        let word = line.trim();
        let patterns = verbs.entry(if line == word { word } else { last }).or_default();
        if line == word {
            last = word;
        } else {
            patterns.push(word);
        }
    }
    verbs
}

/// Whether a name matches a pattern, in which an asterisk stands for any text.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut name) = name.strip_prefix(first) else { return false };
    let (parts, last) = rest.rsplit_once('*').unwrap_or(("", rest));
    for part in parts.split('*') {
        let Some(at) = name.find(part) else { return false };
        name = &name[at + part.len()..];
    }
    name.ends_with(last)
}

/// Cases that `verbs.txt` does not cover, and patterns of it that match no case.
fn wrong(verbs: &Verbs, reports: &[CaseReport]) -> Vec<String> {
    let patterns = || verbs.values().flatten();
    let cases = reports.iter().map(|case| case.name.as_str());
    let lost = cases.clone().filter(|name| !patterns().any(|pattern| matches(pattern, name)));
    let vain = patterns().filter(|pattern| !cases.clone().any(|name| matches(pattern, name)));
    let lost = lost.map(|name| format!("the case {name} belongs to no verb"));
    lost.chain(vain.map(|pattern| format!("no case matches {pattern}"))).collect()
}

/// A cell, for example `12 passed` or `10 passed; 2 skipped: reason`.
fn cell(cases: &[&CaseReport]) -> String {
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    for reason in cases.iter().filter_map(|case| case.skipped.as_deref()) {
        *reasons.entry(reason).or_default() += 1;
    }
    let passed = cases.len() - reasons.values().sum::<usize>();
    let mut parts = Vec::new();
    if passed > 0 {
        parts.push(format!("{passed} passed"));
    }
    let skipped =
        reasons.iter().map(|(reason, count)| format!("{count} skipped: {}", reason.replace('|', "/")));
    parts.extend(skipped);
    parts.join("; ")
}

/// The rows of a page.
fn read(page: &str) -> Rows {
    let row = |line: &str| {
        let cells: Vec<&str> = line.strip_prefix("| `")?.strip_suffix(" |")?.split(" | ").collect();
        let [verb, columns @ ..] = cells.as_slice() else { return None };
        let columns: [&str; 4] = columns.try_into().ok()?;
        let text = |cell: &str| if cell == NOTHING { String::new() } else { cell.to_owned() };
        Some((verb.strip_suffix('`')?.to_owned(), columns.map(text)))
    };
    page.lines().filter_map(row).collect()
}

/// The text of an empty cell.
const NOTHING: &str = "-";

fn write(rows: &Rows) -> String {
    let mut page = INTRODUCTION.to_owned();
    part(&mut page, "verb", rows.iter().filter(|(verb, _)| !verb.starts_with(CM)), WITHOUT);
    page.push_str("\n## The connection manager\n\n");
    part(&mut page, "function", rows.iter().filter(|(verb, _)| verb.starts_with(CM)), WITHOUT_CM);
    page
}

/// Appends a table, and the list of functions without cases.
fn part<'a>(
    page: &mut String,
    title: &str,
    rows: impl Iterator<Item = (&'a String, &'a [String; 4])>,
    without: &[(&str, &str)],
) {
    let _ = writeln!(page, "| {title} | {} |\n| --- | --- | --- | --- | --- |", Column::TITLES.join(" | "));
    for (verb, cells) in rows {
        let cells = cells.each_ref().map(|cell| if cell.is_empty() { NOTHING } else { cell });
        let _ = writeln!(page, "| `{verb}` | {} |", cells.join(" | "));
    }
    page.push_str("\nNo case is about these:\n\n");
    for (verbs, reason) in without {
        let _ = writeln!(page, "{}", wrapped(&format!("- {verbs}: {reason}")));
    }
}

/// A list item, wrapped at 100 columns.
fn wrapped(item: &str) -> String {
    let (mut text, mut column) = (String::new(), 0);
    for word in item.split(' ') {
        if column > 0 && column + 1 + word.len() > 100 {
            text.push_str("\n  ");
            column = 2;
        } else if column > 0 {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += word.len();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(name: &str, skipped: Option<&str>) -> CaseReport {
        CaseReport { name: name.to_owned(), skipped: skipped.map(str::to_owned), notes: Vec::new() }
    }

    #[test]
    fn a_column_is_made_anew_and_others_stay() {
        let verbs = verbs("# cases\nibv_a\n    m::a*\n\nibv_b\n    m::b\n    m::*c\n");
        let cases = [
            report("m::b", None),
            report("m::abc", Some("no|way")),
            report("m::c", None),
            report("m::dc", Some("why")),
        ];
        assert!(wrong(&verbs, &cases).is_empty());
        assert_eq!(wrong(&verbs, &cases[..1]), ["no case matches m::a*", "no case matches m::*c"]);
        let rows = renew(Rows::new(), Column::RoceOld, &verbs, &cases);
        let rows = renew(rows, Column::Inline, &verbs, &cases[..1]);
        assert_eq!(rows["ibv_a"], ["", "", "1 skipped: no/way", ""]);
        assert_eq!(rows["ibv_b"], ["1 passed", "", "2 passed; 1 skipped: no/way; 1 skipped: why", ""]);
        assert_eq!(read(&write(&rows)), rows);
        let rows = renew(rows, Column::RoceOld, &verbs, &cases[..1]);
        assert!(!rows.contains_key("ibv_a"), "{rows:?}");
    }

    #[test]
    fn an_asterisk_is_any_part() {
        for (pattern, name) in
            [("a", "a"), ("a*", "a"), ("*a", "ba"), ("a*c", "abc"), ("*b*", "abc"), ("a*b*d", "axbd")]
        {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in
            [("a", "ab"), ("a*", "ba"), ("*a", "ab"), ("a*a", "a"), ("*b*", "ac"), ("a*b*b", "ab")]
        {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }

    /// The functions of a library and of its headers, according to the bindings.
    fn functions(library: &str, headers: &str) -> Vec<&'static str> {
        let tables = include_str!("../../rdma-mummy-sys/src/bindings/tables.rs");
        let table = tables.split("library_table! {").find(|table| table.contains(library));
        let exported = table.expect("the library's table").lines();
        let exported =
            exported.filter_map(|line| line.split_once(" fn ")?.1.split_once('(').map(|(name, _)| name));
        let inline = include_str!("../../rdma-mummy-sys/src/bindings/inlines.txt").lines();
        let inline = inline.filter_map(|line| line.split_once(' '));
        let inline = inline.filter(|(header, _)| header.starts_with(headers)).map(|(_, name)| name);
        exported.chain(inline).collect()
    }

    #[test]
    fn each_verb_has_cases_or_a_reason() {
        let page = include_str!("../../docs/generated/conformance.md");
        let rows = read(page);
        let mut verbs = functions("libibverbs.so.1", "infiniband/verbs.h");
        assert!(verbs.len() > 150, "{verbs:?}");
        let cm = functions("librdmacm.so.1", "rdma/");
        assert!(cm.len() > 60, "{cm:?}");
        verbs.extend(cm);
        let reasons: Vec<_> = WITHOUT.iter().chain(WITHOUT_CM).map(|(names, _)| *names).collect();
        let reasons = reasons.join(" ");
        let has_reason = |verb: &str| reasons.contains(&format!("`{verb}`"));
        let lost: Vec<_> =
            verbs.iter().filter(|verb| !rows.contains_key(**verb) && !has_reason(verb)).collect();
        assert!(lost.is_empty(), "{lost:?} has neither a case nor a reason in `WITHOUT`");
        let unknown: Vec<_> = rows.keys().filter(|verb| !verbs.contains(&verb.as_str())).collect();
        assert!(unknown.is_empty(), "these verbs do not exist: {unknown:?}");
        let both: Vec<_> = rows.keys().filter(|verb| has_reason(verb)).collect();
        assert!(both.is_empty(), "{both:?} has cases and stands in `WITHOUT`");
    }
}
