//! Finds instructions that synchronise processors, and those that read the clock.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// The locked and exchange instructions and the fences in these functions of a program, as text.
pub(in crate::bench) fn expensive(program: &Path, functions: &[String]) -> Result<Vec<String>> {
    ensure!(!functions.is_empty(), "no function of {} ran for the operations", program.display());
    find(&disassemble(program)?, functions)
}

/// The addresses at which a program reads the processor's clock.
pub(in crate::bench) fn clock_readings(program: &Path) -> Result<BTreeSet<u64>> {
    Ok(find_clock(&disassemble(program)?))
}

fn disassemble(program: &Path) -> Result<String> {
    let mut command = Command::new("objdump");
    command.args(["--disassemble", "--no-show-raw-insn", "--wide"]).arg(program);
    let output = command.output().context("cannot run objdump: install it (package binutils)")?;
    ensure!(output.status.success(), "objdump: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The addresses of `rdtsc` and `rdtscp`, or of reads of aarch64's counter.
fn find_clock(disassembly: &str) -> BTreeSet<u64> {
    let reads = |instruction: &str| {
        let name = instruction.split_whitespace().next().unwrap_or_default();
        matches!(name, "rdtsc" | "rdtscp") || instruction.contains("cntvct_el0")
    };
    let lines = disassembly.lines().filter_map(|line| line.split_once(":\t"));
    let found = lines.filter(|(_, instruction)| reads(instruction));
    found.filter_map(|(address, _)| u64::from_str_radix(address.trim(), 16).ok()).collect()
}

fn find(disassembly: &str, functions: &[String]) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for function in functions {
        let head = format!(" <{function}>:");
        let mut lines = disassembly.lines().skip_while(|line| !line.ends_with(&head)).skip(1);
        let body: Vec<&str> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
        ensure!(!body.is_empty(), "objdump does not show {function}");
        for line in body {
            let instruction = line.split_once('\t').map_or("", |(_, instruction)| instruction);
            if is_expensive(instruction) {
                found.push(format!("{function} has `{}`", instruction.trim()));
            }
        }
    }
    Ok(found)
}

/// For x86-64 and aarch64. An `xchg` of registers, as in the padding `xchg %ax,%ax`, synchronises
/// nothing.
fn is_expensive(instruction: &str) -> bool {
    let mut words = instruction.split_whitespace();
    let name = words.next().unwrap_or_default();
    if name == "xchg" {
        return instruction.contains('(');
    }
    const NAMES: [&str; 9] =
        ["lock", "mfence", "lfence", "sfence", "dmb", "dsb", "isb", "serialize", "cpuid"];
    const BEGINNINGS: [&str; 13] = [
        "ldxr", "ldxp", "stxr", "stxp", "ldaxr", "ldaxp", "stlxr", "stlxp", "cas", "swp", "ldadd", "ldset",
        "ldclr",
    ];
    // Outlined atomics of aarch64.
    let calls = instruction.contains("__aarch64_");
    NAMES.contains(&name) || calls || BEGINNINGS.iter().any(|beginning| name.starts_with(beginning))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: &str = "\n0000000000001000 <post>:\n    1000:\tpush   %rbp\n    1001:\tlock incl (%rax)\n    1004:\tret\n\n\
                        0000000000002000 <poll>:\n    2000:\txchg   %ax,%ax\n    2002:\txchg   %eax,(%rdi)\n    2004:\tret\n\n\
                        0000000000003000 <fine>:\n    3000:\txchg   %ax,%ax\n    3002:\tret\n";

    #[test]
    fn waiting_instructions_are_found() {
        let of = |name: &str| find(CODE, &[name.to_owned()]).unwrap();
        assert_eq!(of("post"), ["post has `lock incl (%rax)`"]);
        assert_eq!(of("poll").len(), 1);
        assert!(of("fine").is_empty());
        assert!(find(CODE, &["gone".to_owned()]).is_err());
    }

    #[test]
    fn the_clock_is_found_where_it_is_read() {
        let code =
            "  401a:\trdtsc\n    401c:\tshl    $0x20,%rdx\n    5010:\tmrs\tx0, cntvct_el0\n   6000:\tnop\n";
        assert_eq!(find_clock(code), BTreeSet::from([0x401a, 0x5010]));
    }

    #[test]
    fn both_architectures_are_known() {
        for instruction in
            ["mfence", "dmb\tish", "ldaxr\tw0, [x1]", "casal\tw0, w1, [x2]", "bl\t1 <__aarch64_swp4>"]
        {
            assert!(is_expensive(instruction), "{instruction}");
        }
        for instruction in ["mov    %rax,%rbx", "ldr\tx0, [x1]", "call   *0x140(%rdi)"] {
            assert!(!is_expensive(instruction), "{instruction}");
        }
    }
}
