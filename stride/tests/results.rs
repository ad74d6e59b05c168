//! Result files: their schema, their documentation, and the handling of existing files.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{Ended, Running, command};
use serde_json::Value;

fn soft(flags: &str) -> Command {
    let mut command = command(flags);
    command.env("SIDEWAY_PROVIDER", "soft").env_remove("TRESPASS_TRANSPORT").env_remove("TRESPASS_DEV");
    command
}

/// A folder that is removed with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("stride-results-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// Runs the program in the folder.
    #[track_caller]
    fn run(&self, flags: &str) -> Ended {
        Running::start(soft(flags).current_dir(&self.0)).end()
    }

    #[track_caller]
    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.0.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn schema() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("schema/result.schema.json");
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// Parses a document and validates it against the schema.
#[track_caller]
fn valid(text: &str) -> Value {
    let document: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error} in {text}"));
    let validator = jsonschema::validator_for(&schema()).unwrap();
    let errors: Vec<_> =
        validator.iter_errors(&document).map(|error| format!("{}: {error}", error.instance_path())).collect();
    assert!(errors.is_empty(), "{errors:#?} in {text}");
    document
}

/// The number of samples in a row's histogram.
fn samples(result: &Value) -> u64 {
    let buckets = result["histogram"]["buckets_us"].as_array().unwrap();
    buckets.iter().map(|bucket| bucket[1].as_u64().unwrap()).sum()
}

#[test]
fn the_schema_refuses_what_it_does_not_know() {
    let folder = Folder::new("refused");
    folder.run("write bw --loopback -n 5 -s 64 --json a.json").succeeded();
    let document = valid(&folder.text("a.json"));
    let validator = jsonschema::validator_for(&schema()).unwrap();
    let changes: [fn(&mut Value); 5] = [
        |document| document["new"] = 1.into(),
        |document| document["results"][0]["new"] = 1.into(),
        |document| document["results"][0]["bw_gbps"] = "fast".into(),
        |document| document["status"] = "lost".into(),
        |document| _ = document.as_object_mut().unwrap().remove("run_id"),
    ];
    for (index, change) in changes.iter().enumerate() {
        let mut changed = document.clone();
        change(&mut changed);
        assert!(!validator.is_valid(&changed), "change {index}");
    }
}

#[test]
fn documents_of_every_kind_of_test_are_valid() {
    let folder = Folder::new("kinds");
    for (index, test) in [
        "write bw -a --max-msg-size 64 -n 10",
        "write lat -n 30",
        "write lat -n 30 --latency completion",
        "send lat -n 30 -c UD",
        "read bw -n 30",
        "atomic lat -n 30",
        "msg bw -n 10 --transport tcp",
        "msg lat -n 10 --transport rdma",
        "msg grid -n 30 --transport rdma --max-msg-size 4K",
        "msg grid -n 30 --transport tcp --api pool -s 64 -t 7",
        "msg grid -n 30 --transport tcp --api mux -s 64 -t 7",
    ]
    .iter()
    .enumerate()
    {
        let ended = folder.run(&format!("{test} --loopback --json {index}.json")).succeeded();
        let document = valid(&folder.text(&format!("{index}.json")));
        assert_eq!(document["status"], "finished");
        assert_eq!(document["role"], "loopback");
        assert_eq!(document["command"][1], test.split(' ').next().unwrap());
        let results = document["results"].as_array().unwrap();
        let rows = ended.rows();
        assert_eq!(results.len(), rows.len());
        for (result, row) in results.iter().zip(&rows) {
            assert_eq!(result["msg_bytes"].as_f64(), Some(row[0]));
            assert_eq!(result["iterations"].as_f64(), Some(row[1]));
            assert!(result["duration_s"].as_f64().unwrap() > 0.0);
            assert_eq!(result["qps"].is_null(), !test.contains(" grid"), "{result}");
            if test.contains(" grid") {
                let [_, _, in_flight, gigabits, p90, p99, rate, of_mux @ ..] = &row[..] else {
                    panic!("{row:?}")
                };
                assert_eq!(result["requests_per_write"].is_null(), of_mux.is_empty(), "{result}");
                let is = |key: &str, shown: f64, digits: f64| {
                    let value = result[key].as_f64().unwrap_or_else(|| panic!("{key} in {result}"));
                    assert!((value - shown).abs() <= digits, "{key}: {result} {row:?}");
                };
                assert_eq!(result["in_flight"].as_f64(), Some(*in_flight));
                is("bw_gbps", *gigabits, 0.0001);
                is("lat_us_p90", *p90, 0.001);
                is("lat_us_p99", *p99, 0.001);
                is("qps", *rate, 1.0);
                is("msg_rate_mpps", rate / 1e6, 1e-6);
                of_mux.iter().for_each(|per_write| is("requests_per_write", *per_write, 0.001));
                assert_eq!(samples(result) as f64, row[1]);
            } else if test.contains(" bw") {
                let shown = format!("{:.3}", row[2]).parse::<f64>().unwrap();
                assert!((result["bw_gbps"].as_f64().unwrap() - shown).abs() <= 0.001, "{result} {row:?}");
                assert_eq!((&result["lat_us_p50"], &result["histogram"]), (&Value::Null, &Value::Null));
            } else {
                assert!((result["lat_us_p90"].as_f64().unwrap() - row[5]).abs() <= 0.001, "{result} {row:?}");
                assert_eq!(result["bw_gbps"], Value::Null);
                assert_eq!(samples(result) as f64, row[1]);
            }
        }
        let over_tcp = test.contains("tcp");
        assert_eq!(results[0]["payload_path"].is_null(), over_tcp, "{}", results[0]);
        let carrier = &document["connection"]["transport"];
        assert_eq!(
            carrier,
            if over_tcp {
                "TCP"
            } else if test.starts_with("msg") {
                "RDMA"
            } else if test.contains("UD") {
                "UD"
            } else {
                "RC"
            }
        );
        if test.starts_with("write") {
            assert_eq!(document["device"]["is_software"], true);
            assert_eq!(document["parameters"]["plan"]["iterations"].as_f64(), Some(rows[0][1]));
        }
    }
}

#[test]
fn client_and_server_both_write_what_they_know() {
    let folder = Folder::new("sides");
    for (flags, measures) in [("-n 40", "client"), ("-D 2 --reversed", "server")] {
        let mut server = Running::start(soft("write lat -p 0 --json server.json").current_dir(&folder.0));
        let waiting = server.await_line("waiting for a client on TCP port");
        let port = waiting.rsplit(' ').next().unwrap();
        folder.run(&format!("write lat {flags} -s 8 127.0.0.1 -p {port} --json client.json")).succeeded();
        server.end().succeeded();
        let (client, server) = (valid(&folder.text("client.json")), valid(&folder.text("server.json")));
        assert_eq!((&client["role"], &server["role"]), (&"client".into(), &"server".into()));
        assert_eq!(client["peer"]["address"], format!("127.0.0.1:{port}"));
        assert_eq!(server["peer"]["version"], env!("CARGO_PKG_VERSION"));
        assert_eq!(client["results"][0]["lat_us_p50"], server["results"][0]["lat_us_p50"]);
        assert_eq!(client["parameters"], server["parameters"]);
        assert_ne!(client["run_id"], server["run_id"]);
        for document in [&client, &server] {
            let (result, is_its_own) = (&document["results"][0], document["role"] == measures);
            assert_eq!(result["histogram"].is_object(), is_its_own, "{document}");
            let seconds = result["intervals"].as_array().unwrap().len();
            // On a busy machine a given number of messages may take more than a second.
            if flags.contains("-D") || !is_its_own {
                assert_eq!(seconds > 0, is_its_own, "{document}");
            }
        }
        let own = if measures == "client" { &client } else { &server };
        assert_eq!(Some(samples(&own["results"][0])), own["results"][0]["iterations"].as_u64());
        for name in ["client.json", "server.json"] {
            fs::remove_file(folder.0.join(name)).unwrap();
        }
    }
}

#[test]
fn standard_output_is_the_files_alone() {
    let folder = Folder::new("stdout");
    let flags = "write bw --loopback -n 10 -a --max-msg-size 8";
    let ended = folder.run(&format!("{flags} --json -")).succeeded();
    assert_eq!(valid(&ended.stdout)["results"].as_array().unwrap().len(), 3);
    assert!(ended.stderr.contains("#bytes"), "{ended:#?}");
    let ended = folder.run(&format!("{flags} --csv -")).succeeded();
    let lines: Vec<_> = ended.stdout.lines().map(|line| line.split(',').collect::<Vec<_>>()).collect();
    assert_eq!((lines.len(), lines[0][0]), (4, "run_id"), "{ended:#?}");
    let column = |name| lines[0].iter().position(|column| *column == name).unwrap();
    let (bytes, gbps, device) = (column("msg_bytes"), column("bw_gbps"), column("device"));
    assert_eq!(lines[1..].iter().map(|line| line[bytes]).collect::<Vec<_>>(), ["2", "4", "8"]);
    for line in &lines[1..] {
        assert_eq!((line.len(), line[device]), (lines[0].len(), "soft0"), "{ended:#?}");
        assert!(line[gbps].parse::<f64>().unwrap() > 0.0, "{ended:#?}");
    }
    let ended = folder.run(&format!("{flags} --jsonl -")).succeeded();
    let objects: Vec<Value> = ended.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(objects.iter().map(|object| &object["msg_bytes"]).collect::<Vec<_>>(), [2, 4, 8]);
    // A run without measurements records that in the document, too.
    let ended = folder.run("write bw -d no_such --loopback --json -");
    let document = valid(&ended.stdout);
    assert_eq!((&document["status"], ended.status.code()), (&"failed".into(), Some(2)));
    assert!(document["error"].as_str().unwrap().contains("no_such"), "{document}");
}

#[test]
fn existing_files_are_overwritten_only_by_force() {
    let folder = Folder::new("there");
    for (flag, name) in [("--json", "a.json"), ("--csv", "a.csv"), ("--hgrm", "a.hgrm")] {
        fs::write(folder.0.join(name), "precious").unwrap();
        let flags = format!("write lat --loopback -n 10 {flag} {name}");
        let refused = folder.run(&flags);
        let line = refused.refused();
        assert!(line.contains(name) && line.contains("exists") && line.contains("--force"), "{line}");
        assert_eq!(folder.text(name), "precious");
        folder.run(&format!("{flags} --force")).succeeded();
        assert_ne!(folder.text(name), "precious");
        // A run without measurements leaves the file, even with --force.
        fs::write(folder.0.join(name), "precious").unwrap();
        assert_eq!(folder.run(&format!("{flags} --force -d no_such")).status.code(), Some(2));
        assert_eq!(folder.text(name), "precious");
        fs::remove_file(folder.0.join(name)).unwrap();
        assert_eq!(folder.run(&format!("{flags} -d no_such")).status.code(), Some(2));
        assert!(folder.names().is_empty(), "{:?}", folder.names());
    }
}

#[test]
fn lines_are_added_to_those_that_are_there() {
    let folder = Folder::new("lines");
    let flags = "write bw --loopback -n 10 -s 64 --jsonl all.jsonl";
    folder.run(flags).succeeded();
    folder.run(flags).succeeded();
    let two = folder.text("all.jsonl");
    let ids: BTreeSet<_> = two
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["run_id"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!((two.lines().count(), ids.len()), (2, 2));
    // An incomplete line of another program stays separate.
    fs::write(folder.0.join("all.jsonl"), "{\"half\":").unwrap();
    folder.run(flags).succeeded();
    let text = folder.text("all.jsonl");
    assert_eq!((text.lines().next(), text.lines().count()), (Some("{\"half\":"), 2));
    folder.run(&format!("{flags} --force")).succeeded();
    assert_eq!(folder.text("all.jsonl").lines().count(), 1);
}

#[test]
fn distributions_are_a_file_each() {
    let folder = Folder::new("hgrm");
    folder.run("write lat --loopback -n 100 --hgrm one.hgrm").succeeded();
    folder.run("write lat --loopback -n 100 -a --max-msg-size 4 --hgrm all.hgrm").succeeded();
    folder.run("msg grid --loopback --transport tcp -n 100 -t 8 -s 64 --hgrm cell.hgrm").succeeded();
    folder.run("msg grid --loopback --transport tcp -n 100 -s 64 --hgrm grid.hgrm").succeeded();
    let grid = [1, 16, 256, 4, 64].map(|in_flight| format!("grid.64.{in_flight}.hgrm"));
    let mut names =
        [&["all.2.hgrm".to_owned(), "all.4.hgrm".to_owned(), "cell.hgrm".to_owned()], &grid[..]].concat();
    names.push("one.hgrm".to_owned());
    assert_eq!(folder.names(), names);
    for name in folder.names() {
        let text = folder.text(&name);
        assert!(
            text.contains("1/(1-Percentile)") && text.contains("Total count    =          100]"),
            "{text}"
        );
    }
}

#[test]
fn a_full_disk_is_said_and_the_table_goes_on() {
    let folder = Folder::new("full");
    for flag in ["--json", "--csv", "--jsonl"] {
        let ended = folder.run(&format!("write bw --loopback -n 10 -a --max-msg-size 8 {flag} /dev/full"));
        assert_eq!((ended.status.code(), ended.rows().len()), (Some(2), 3), "{ended:#?}");
        let line = ended.complaint();
        assert!(
            line.contains(flag) && line.contains("/dev/full") && line.contains("No space left"),
            "{line}"
        );
    }
}

/// Complete lines stay, and no part of a line that does not fit is written. (The tests of
/// `replaced` cover whole documents.)
#[test]
fn a_disk_that_gets_full_keeps_the_lines_that_fit() {
    // A limit on file sizes stands for a full disk; shared memory counts as a file, too.
    const LIMIT: u64 = 64 << 20;
    let folder = Folder::new("fuller");
    let path = folder.0.join("a.jsonl");
    let before = LIMIT - 1500;
    let file = fs::File::create(&path).unwrap();
    file.set_len(before - 1).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"\n", before - 1).unwrap();
    let program = soft("").get_program().to_owned();
    let flags = "msg bw --transport tcp --loopback -a -n 5 --jsonl a.jsonl";
    let script =
        format!("trap '' XFSZ; exec prlimit --fsize={LIMIT} '{}' {flags}", Path::new(&program).display());
    let mut command = Command::new("sh");
    command.args(["-c", &script]).current_dir(&folder.0).env("SIDEWAY_PROVIDER", "soft");
    let ended = Running::start(&mut command).end();
    assert_eq!((ended.status.code(), ended.rows().len()), (Some(2), 23), "{ended:#?}");
    assert!(ended.complaint().contains("File too large"), "{ended:#?}");
    assert_eq!(ended.stderr.matches("warning: --jsonl").count(), 1, "{ended:#?}");
    let text = fs::read(&path).unwrap();
    let lines = std::str::from_utf8(&text[before as usize..]).unwrap();
    assert!(lines.ends_with('\n') && (1..23).contains(&lines.lines().count()), "{lines}");
    assert!(lines.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{lines}");
}

#[test]
fn conflicting_output_flags_are_refused() {
    let folder = Folder::new("together");
    for (flags, words) in [
        ("--json - --csv -", ["--json", "--csv", "standard output"]),
        ("--json a --csv a", ["--json", "--csv", "another file"]),
        ("--hgrm -", ["--hgrm", "several", "give a file"]),
        ("--json no/such/folder/a", ["--json", "no/such/folder/a", "make its folder"]),
        ("--csv .", ["--csv", ".", "directory"]),
        ("--expect-p99 5", ["--expect-p99", "latency", "--expect-bw"]),
        ("--expect-bw 3:5", ["--expect-bw 3:5", "65536", "give one"]),
        ("--expect-bw 5us", ["5us", "a number above 0", "--expect-bw"]),
    ] {
        let ended = folder.run(&format!("write bw --loopback {flags}"));
        assert_eq!(ended.stderr.lines().count(), 1, "{ended:#?}");
        let line = ended.refused();
        assert!(words.iter().all(|word| line.contains(word)), "{flags}: {line}");
    }
    assert!(folder.names().is_empty());
}

#[test]
fn expectations_decide_the_exit_code() {
    let folder = Folder::new("expected");
    let run = |flags: &str| folder.run(&format!("{flags} --loopback -n 20"));
    run("write bw --expect-bw 0.000001").succeeded();
    run("write lat --expect-p99 1e9").succeeded();
    let ended = run("write bw -a --max-msg-size 8 --expect-bw 4:1e9");
    assert_eq!((ended.status.code(), ended.rows().len()), (Some(1), 3), "{ended:#?}");
    let lines: Vec<_> = ended.stderr.lines().filter(|line| line.contains("--expect-bw")).collect();
    assert!(lines.len() == 1 && lines[0].starts_with("messages of 4 bytes: "), "{ended:#?}");
    let ended = run("msg lat --transport tcp --expect-p99 0.001");
    assert_eq!(ended.status.code(), Some(1), "{ended:#?}");
    let grid = "msg grid --transport tcp -s 64 -t 4 --expect-bw 0.000001";
    run(&format!("{grid} --expect-p99 1e9")).succeeded();
    let ended = run(&format!("{grid} --expect-p99 0.001"));
    assert_eq!(ended.status.code(), Some(1), "{ended:#?}");
    assert!(ended.stderr.contains("messages of 64 bytes, 4 in flight: a 99th percentile"), "{ended:#?}");
    // An error takes precedence.
    assert_eq!(run("write bw -d no_such --expect-bw 1e9").status.code(), Some(2));
}

/// Every key of the schema, by its path.
fn keys(schema: &Value, at: &Value, prefix: &str, found: &mut BTreeSet<String>) {
    for (name, property) in at["properties"].as_object().into_iter().flatten() {
        let definition = property["items"]["$ref"].as_str();
        let key = format!("{prefix}{name}{}", if definition.is_some() { "[]" } else { "" });
        keys(schema, property, &format!("{key}."), found);
        if let Some(definition) = definition {
            keys(schema, &schema["$defs"][definition.rsplit('/').next().unwrap()], &format!("{key}."), found);
        }
        found.insert(key);
    }
}

#[test]
fn the_documentation_has_every_key_and_no_other() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/stride.md");
    let text = fs::read_to_string(path).unwrap();
    let table = text.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let documented: BTreeSet<_> = table.map(str::to_owned).collect();
    let schema = schema();
    let mut known = BTreeSet::new();
    keys(&schema, &schema, "", &mut known);
    assert!(known.len() > 70, "{known:?}");
    assert_eq!(documented.difference(&known).collect::<Vec<_>>(), Vec::<&String>::new());
    assert_eq!(known.difference(&documented).collect::<Vec<_>>(), Vec::<&String>::new());
    // The text names the columns in order.
    for column in stride::result::COLUMNS {
        assert!(text.contains(column), "{column}");
    }
}
