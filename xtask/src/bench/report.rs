//! Summarises the guest's rounds of stride-perf and perftest.

use std::fmt::Write as _;

use anyhow::{Context, Result, bail};

use super::rounds::{self, Better, NamedRounds, Round};
use super::statistics::median;

/// perftest's version, and a table with the geometric means below it.
pub(super) fn report(output: &str) -> Result<(String, String)> {
    let (first, samples) =
        output.split_once('\n').context("the guest printed nothing; see its messages above")?;
    if !first.starts_with("perftest ") || samples.trim().is_empty() {
        bail!("the guest measured nothing; see its messages above");
    }
    let rows = rounds::parse(samples)?;
    let mut table = String::from(
        "| test, bytes | perftest | stride-perf | unit | stride-perf / perftest | perftest / perftest |\n\
         | --- | ---: | ---: | --- | ---: | ---: |\n",
    );
    let mut by_unit: [Vec<Round>; 2] = Default::default();
    for NamedRounds { name, rounds } in &rows {
        let (better, unit, index) = match name.split(' ').nth(1) {
            Some("bw") => (Better::More, "M messages/s", 0),
            Some("lat") => (Better::Less, "us, median", 1),
            _ => bail!("unexpected row of the guest: {name}"),
        };
        if rounds.iter().any(|round| round.reference.min(round.ours).min(round.again) <= 0.0) {
            bail!("not a measurement, of {name}: {rounds:?}");
        }
        by_unit[index].extend(rounds);
        let column = |value: &dyn Fn(&Round) -> f64| median(rounds.iter().map(value).collect());
        writeln!(
            table,
            "| {name} | {:.6} | {:.6} | {unit} | {:.3} | {:.3} |",
            column(&|round| round.reference),
            column(&|round| round.ours),
            column(&|round| round.times(better)),
            column(&|round| round.noise(better))
        )?;
    }
    writeln!(table, "\nGeometric means, above 1 stride-perf is better:\n")?;
    for (what, better, rounds) in [
        ("bandwidth and message rate", Better::More, &by_unit[0]),
        ("median latency", Better::Less, &by_unit[1]),
    ] {
        if !rounds.is_empty() {
            writeln!(table, "- {what}: {}", rounds::verdict(rounds, better))?;
        }
    }
    Ok((first.to_owned(), table))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_latencies_are_judged_apart() {
        let round =
            "sample write_bw_64 1.0 1.1 1.0\nsample write_bw_2_-l_64 1 1.1 1\nsample read_lat_2 10 12 10\n";
        let (release, table) = report(&format!("perftest 6.06\n{round}{round}")).unwrap();
        assert_eq!(release, "perftest 6.06");
        assert!(
            table.contains("| write bw 2 -l 64 | 1.000000 | 1.100000 | M messages/s | 1.100 | 1.000 |"),
            "{table}"
        );
        assert!(table.contains("message rate: stride-perf / perftest 1.100"), "{table}");
        let latency = table.lines().last().unwrap();
        assert!(latency.contains("0.833") && latency.ends_with("**missed**."), "{latency}");
        assert!(
            report("perftest 6.06\n").is_err()
                && report("").is_err()
                && report("what\nsample a 1 2 3\n").is_err()
        );
        assert!(report("perftest 6\nsample write_bw_64 1 0 1\n").is_err());
    }
}
