//! What the guest's turns say of stride-perf and perftest.

use std::fmt::Write as _;

use anyhow::{Context, Result, bail};

use super::statistics::median;
use super::turns::{self, Better, Turn, Turns};

/// perftest's release, and a table with the geometric means below it.
pub(super) fn report(output: &str) -> Result<(String, String)> {
    let (first, samples) =
        output.split_once('\n').context("the guest said nothing: its messages are above")?;
    if !first.starts_with("perftest ") || samples.trim().is_empty() {
        bail!("the guest measured nothing: its messages are above");
    }
    let rows = turns::parse(samples)?;
    let mut table = String::from(
        "| test, bytes | perftest | stride-perf | unit | stride-perf / perftest | perftest / perftest |\n\
         | --- | ---: | ---: | --- | ---: | ---: |\n",
    );
    let mut by_unit: [Vec<Turn>; 2] = Default::default();
    for Turns { name, turns } in &rows {
        let (better, unit, index) = match name.split(' ').nth(1) {
            Some("bw") => (Better::More, "M messages/s", 0),
            Some("lat") => (Better::Less, "us, median", 1),
            _ => bail!("unexpected row of the guest: {name}"),
        };
        if turns.iter().any(|turn| turn.reference.min(turn.ours).min(turn.again) <= 0.0) {
            bail!("not a measurement, of {name}: {turns:?}");
        }
        by_unit[index].extend(turns);
        let column = |value: &dyn Fn(&Turn) -> f64| median(turns.iter().map(value).collect());
        writeln!(
            table,
            "| {name} | {:.6} | {:.6} | {unit} | {:.3} | {:.3} |",
            column(&|turn| turn.reference),
            column(&|turn| turn.ours),
            column(&|turn| turn.times(better)),
            column(&|turn| turn.noise(better))
        )?;
    }
    writeln!(table, "\nGeometric means, above 1 stride-perf is better:\n")?;
    for (what, better, turns) in [
        ("bandwidth and message rate", Better::More, &by_unit[0]),
        ("median latency", Better::Less, &by_unit[1]),
    ] {
        if !turns.is_empty() {
            writeln!(table, "- {what}: {}", turns::verdict(turns, better))?;
        }
    }
    Ok((first.to_owned(), table))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_latencies_are_judged_apart() {
        let turn =
            "sample write_bw_64 1.0 1.1 1.0\nsample write_bw_2_-l_64 1 1.1 1\nsample read_lat_2 10 12 10\n";
        let (release, table) = report(&format!("perftest 6.06\n{turn}{turn}")).unwrap();
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
