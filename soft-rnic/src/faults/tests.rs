//! Tests of the rule parser, and of random choices.

use std::time::Duration;

use rdma_mummy_sys::types::{ibv_qp_type, ibv_wc_status};

use super::words::{Call, CmMessage, ERRNOS, Opcode, QP_TYPES, STATUSES, Step};
use super::*;

fn one(text: &str) -> Rule {
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn rules_are_read() {
    let ms = Duration::from_millis;
    for (text, rule) in [
        ("drop", Rule::new(Action::Drop(None))),
        ("DROP=3 nth=2", Rule::new(Action::Drop(Some(3))).nth(2)),
        (
            "delay=1ms..2.5ms every=10",
            Rule::new(Action::Delay(ms(1), Duration::from_micros(2500))).which(Which::Every(10)),
        ),
        ("hold=3", Rule::new(Action::Hold(3, Duration::from_secs(1)))),
        ("hold=3:50ms qpn=0x4001", Rule::new(Action::Hold(3, ms(50))).qpn(0x4001)),
        ("rate=1.5Gb/s device=soft1", Rule::new(Action::Rate(1_500_000_000)).device(1)),
        ("Rate=64Kb/s opcode=rdma_read", Rule::new(Action::Rate(64_000)).opcode(Opcode::RdmaRead)),
        ("hang nth=4", Rule::new(Action::Hang { silent: false }).nth(4)),
        ("hang=Silent", Rule::new(Action::Hang { silent: true })),
        (
            "port-flap=5ms..20ms:1s:10 nth=1",
            Rule::new(Action::PortFlap { down: (ms(5), ms(20)), up: (ms(1000), ms(1000)), times: Some(10) })
                .nth(1),
        ),
        (
            "port_flap=5ms:1ms..2ms call=query_port",
            Rule::new(Action::PortFlap { down: (ms(5), ms(5)), up: (ms(1), ms(2)), times: None })
                .call(Call::QueryPort),
        ),
        ("status=IBV_WC_REM_OP_ERR", Rule::new(Action::Status(ibv_wc_status::IBV_WC_REM_OP_ERR))),
        ("rnr=4 opcode=send", Rule::new(Action::Rnr(Some(4))).opcode(Opcode::Send)),
        ("flip size=4096..", Rule::new(Action::Flip(1)).size(4096..=u64::MAX)),
        ("flip=2 size=..64", Rule::new(Action::Flip(2)).size(0..=64)),
        ("split=1s size=64", Rule::new(Action::Split(Duration::from_secs(1))).size(64..=64)),
        ("cq-overrun chance=0.5", Rule::new(Action::CqOverrun).which(Which::Chance(0.5))),
        ("srq_limit first=2", Rule::new(Action::SrqLimit).which(Which::First(2))),
        (
            "port-down=20ms port=2 call=query_port",
            Rule::new(Action::PortDown(Some(ms(20)))).port(2).call(Call::QueryPort),
        ),
        ("device_fatal call=open_device", Rule::new(Action::DeviceFatal).call(Call::OpenDevice)),
        ("port-up from=3", Rule::new(Action::PortUp).which(Which::From(3))),
        (
            "qp_fatal qp_type=rc,UD",
            Rule::new(Action::QpFatal).qp_type(ibv_qp_type::IBV_QPT_RC).qp_type(ibv_qp_type::IBV_QPT_UD),
        ),
        ("device_fatal device=soft1", Rule::new(Action::DeviceFatal).device(1)),
        ("errno=ENOMEM call=ibv_create_qp", Rule::new(Action::Errno(libc::ENOMEM)).call(Call::CreateQp)),
        ("max_sge=1", Rule::new(Action::Trait(Trait::Limit("max_sge".into(), 1)))),
        (
            "crash=mid-copy opcode=rdma_write",
            Rule::new(Action::Crash(Step::MidCopy)).opcode(Opcode::RdmaWrite),
        ),
        ("pause=before-doorbell:2ms", Rule::new(Action::Pause(Step::BeforeDoorbell, ms(2)))),
        ("drop cm=REQ,rep nth=2", Rule::new(Action::Drop(None)).cm(CmMessage::Req).cm(CmMessage::Rep).nth(2)),
        ("duplicate cm=rtu", Rule::new(Action::Duplicate(1)).cm(CmMessage::Rtu)),
        ("reject cm=sidr-req", Rule::new(Action::Reject(None)).cm(CmMessage::SidrReq)),
        ("reject=8 cm=req", Rule::new(Action::Reject(Some(8))).cm(CmMessage::Req)),
        ("vendor_id=0x15b3", Rule::new(Action::Trait(Trait::VendorId(0x15b3)))),
    ] {
        assert_eq!(one(text), rule, "{text}");
    }
}

#[test]
fn a_list_has_lines_semicolons_and_comments() {
    let rules = parse("# first\n\n drop nth=1 ;; delay=1us # and so on; not a rule\n\tqp-fatal;").unwrap();
    let shown: Vec<_> = rules.iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["drop nth=1", "delay=1us", "qp_fatal"]);
    assert_eq!(parse(" # nothing\n;"), Ok(Vec::new()));
}

/// Every action with every argument that it accepts.
fn every_action() -> Vec<String> {
    let mut all: Vec<String> = [
        "drop",
        "drop=2",
        "delay=5us",
        "delay=1ns..3s",
        "hold=1:1ms",
        "rate=1b/s",
        "rate=1500Mb/s",
        "rate=64kb/s",
        "rate=1000Gb/s",
        "hang",
        "hang=silent",
        "rnr",
        "rnr=9",
        "flip=8",
        "split=2ms",
        "cq_overrun",
        "srq_limit",
        "port_down",
        "port_down=1s",
        "port_up",
        "port_flap=1ms:2ms",
        "port_flap=1ms..2s:3ms..1s:7",
        "port_flap=1s:1s:1 call=open_device",
        "qp_fatal",
        "device_fatal",
        "no_gids",
        "no_atomics",
        "node_guid=0x0",
        "vendor_id=0x1",
        "vendor_part_id=0x2",
        "hw_ver=0x3",
        "max_sge=1",
        "max_mr_size=4096",
        "delay=1ms cm=req,rep",
        "duplicate=100 cm=drep",
        "reject cm=rep",
        "reject=255 cm=sidr_req",
    ]
    .map(str::to_owned)
    .into();
    all.extend(STATUSES.iter().map(|(word, _)| format!("status={word}")));
    all.extend(ERRNOS.iter().map(|(word, _)| format!("errno={word} call=reg_mr")));
    all.extend(Step::ALL.iter().flat_map(|(word, _)| {
        [format!("crash={word}"), format!("stop={word}"), format!("pause={word}:2ms")]
    }));
    all.extend(Call::ALL.iter().map(|(word, _)| format!("errno=EIO call={word}")));
    all.extend(CmMessage::ALL.iter().map(|(word, _)| format!("drop cm={word}")));
    all.extend(Opcode::ALL.iter().map(|(word, _)| format!("qp_fatal opcode={word}")));
    all.extend(QP_TYPES.iter().map(|(word, _)| format!("drop qp_type={word}")));
    all
}

#[test]
#[cfg_attr(miri, ignore = "minutes, over safe code alone")]
fn displayed_rules_parse_to_themselves() {
    let whens = ["", " nth=3", " first=4", " from=5", " every=6", " chance=0.25"];
    for action in every_action() {
        let made = one(&action).of_device().is_some();
        for when in if made { &whens[..1] } else { &whens } {
            let text = format!("{action}{when}");
            assert_eq!(one(&text).to_string(), text);
        }
    }
}

#[test]
fn an_error_names_the_rule_the_place_and_what_is_allowed() {
    for (text, line, column, found, allowed) in [
        ("dorp", 1, 1, "dorp", "an action: drop"),
        ("drop\n  drop nht=3", 2, 8, "nht=3", "a condition: device=softN"),
        ("drop nth=1; drop nth=0", 1, 22, "0", "a number from 1 to"),
        ("drop=0", 1, 6, "0", "a number from 1 to 4294967295"),
        ("drop nth", 1, 6, "nth", "a condition"),
        ("drop nth=1 every=2", 1, 12, "every=2", "the only one of nth="),
        ("delay=5", 1, 7, "5", "a time of at most an hour with its unit"),
        ("delay", 1, 6, "", "a time of at most an hour"),
        ("delay=5ms..x", 1, 12, "x", "a time of at most"),
        ("delay=5ms..1ms", 1, 7, "5ms..1ms", "a shorter and a longer one"),
        ("delay=2h", 1, 7, "2h", "a time"),
        ("delay=-1s", 1, 7, "-1s", "a time"),
        ("split=2000000s", 1, 7, "2000000s", "at most an hour"),
        ("hold=0", 1, 6, "0", "a number from 1"),
        ("hold=2:x", 1, 8, "x", "a time"),
        ("rate", 1, 5, "", "a rate from 1b/s"),
        ("rate=1GB/s", 1, 6, "1GB/s", "in bits per second"),
        ("rate=0b/s", 1, 6, "0b/s", "a rate from 1b/s"),
        ("rate=NaNb/s", 1, 6, "NaNb/s", "a rate from 1b/s"),
        ("rate=1001Gb/s", 1, 6, "1001Gb/s", "to 1000Gb/s"),
        ("rate=5", 1, 6, "5", "with its unit"),
        ("rate=1Gb/s opcode=recv", 1, 1, "rate=1Gb/s opcode=recv", "it cannot have opcode=recv"),
        ("hang=loud", 1, 6, "loud", "hang=silent"),
        ("hang call=reg_mr", 1, 1, "hang call=reg_mr", "an action on requests"),
        ("port_flap", 1, 10, "", "how long the port is down and up"),
        ("port_flap=5ms", 1, 11, "5ms", "how long the port is down and up"),
        ("port_flap=5ms:x", 1, 15, "x", "a time of at most"),
        ("port_flap=5ms:9ms..1ms", 1, 15, "9ms..1ms", "a shorter and a longer one"),
        ("port_flap=5ms:1ms:0", 1, 19, "0", "a number from 1"),
        ("port_flap=5us:1ms", 1, 1, "port_flap=5us:1ms", "at least 1ms"),
        ("status=bad", 1, 8, "bad", "one of success, loc_len_err"),
        ("status", 1, 7, "", "one of success"),
        ("qp_fatal=1", 1, 10, "1", "allowed: qp_fatal has no value"),
        ("errno=ENOMEM", 1, 1, "errno=ENOMEM", "it needs call="),
        ("drop cm=reqq", 1, 9, "reqq", "one of req, mra, rep"),
        ("duplicate", 1, 1, "duplicate", "it needs cm="),
        ("duplicate=101 cm=req", 1, 11, "101", "a number from 1 to 100"),
        ("reject", 1, 1, "reject", "it needs cm="),
        ("reject=256 cm=req", 1, 8, "256", "a number from 1 to 255"),
        ("reject cm=req,drep", 1, 1, "reject cm=req,drep", "cm= req, rep, rtu, sidr_req"),
        ("drop=2 cm=req", 1, 1, "drop=2 cm=req", "say first="),
        ("drop cm=req device=soft0", 1, 1, "drop cm=req device=soft0", "cm= and how often"),
        ("drop cm=req call=reg_mr", 1, 1, "drop cm=req call=reg_mr", "cm= and how often"),
        ("flip cm=req", 1, 1, "flip cm=req", "drop, delay=, duplicate, reject"),
        ("no_gids cm=req", 1, 1, "no_gids cm=req", "drop, delay=, duplicate, reject"),
        ("errno=EWHAT call=reg_mr", 1, 7, "EWHAT", "one of EPERM"),
        ("errno=4096 call=reg_mr", 1, 7, "4096", "a number from 1 to 4095"),
        ("errno=EIO call=post_send", 1, 16, "post_send", "one of open_device"),
        ("errno=EIO call=reg_mr size=3", 1, 1, "errno=EIO call=reg_mr size=3", "an action on calls"),
        ("drop call=reg_mr", 1, 1, "drop call=reg_mr", "an action on requests"),
        ("flip opcode=send,recv", 1, 1, "flip opcode=send,recv", "it cannot have opcode=recv"),
        ("flip opcode=send,write", 1, 18, "write", "one of send, send_with_imm"),
        ("rnr opcode=rdma_read", 1, 1, "rnr opcode=rdma_read", "an action on what takes a receive"),
        ("srq_limit opcode=send", 1, 1, "srq_limit opcode=send", "an action on receives"),
        ("qp_fatal call=reg_mr", 1, 1, "qp_fatal call=reg_mr", "it cannot have call="),
        ("drop device=mlx5_0", 1, 13, "mlx5_0", "soft0 to soft15"),
        ("drop device=soft16", 1, 13, "soft16", "soft0 to soft15"),
        ("drop port=0", 1, 11, "0", "a number from 1 to 8"),
        ("drop qpn=0x1000000", 1, 10, "0x1000000", "a number from 1 to 16777215"),
        ("drop qp_type=xrc", 1, 14, "xrc", "one of rc, uc, ud, xrc_send, xrc_recv"),
        ("drop size=9..3", 1, 11, "9..3", "a range"),
        ("drop size=..", 1, 11, "..", "a range"),
        ("drop chance=1.5", 1, 13, "1.5", "a probability from 0 to 1"),
        ("drop chance=NaN", 1, 13, "NaN", "a probability"),
        ("crash=later", 1, 7, "later", "one of before_mark"),
        ("pause=claimed", 1, 7, "claimed", "a step and a time"),
        ("pause=claimed:soon", 1, 15, "soon", "a time of at most an hour"),
        ("max_sge=1000", 1, 9, "1000", "max_sge of at most"),
        ("max_sge=1 nth=2", 1, 1, "max_sge=1 nth=2", "it stands alone"),
        ("max_cats=1", 1, 1, "max_cats=1", "an action"),
        ("no_gids qpn=3", 1, 1, "no_gids qpn=3", "it can have device= only"),
        ("träge", 1, 1, "träge", "an action"),
        ("# träge\ndrop ; träge=ö", 2, 8, "träge=ö", "an action"),
    ] {
        let error = parse(text).expect_err(text);
        let place = (error.line, error.column, error.found.as_str());
        assert_eq!(place, (line, column, found), "{text}: {error}");
        assert!(error.allowed.contains(allowed), "{text}: {error}");
        let shown = error.to_string();
        let rule = text.lines().last().unwrap().split(';').next_back().unwrap().trim();
        assert!(shown.contains(&format!("line {line}, column {column}")) && shown.contains(rule), "{shown}");
    }
    assert!("drop; drop".parse::<Rule>().unwrap_err().to_string().contains("one rule, but several"));
    assert!("".parse::<Rule>().unwrap_err().to_string().contains("one rule, but none"));
}

#[test]
#[cfg_attr(miri, ignore = "minutes, over safe code alone")]
fn no_text_is_too_odd_to_be_refused() {
    // Random sequences of rule fragments: the parser accepts each, or refuses it with a position
    // within the text.
    let pieces = [
        "drop",
        "=",
        "nth",
        "=1",
        ";",
        "\n",
        " ",
        "#",
        "delay=",
        "rate=",
        "b/s",
        "hang",
        "port_flap=",
        "1ms",
        "..",
        ":",
        "hold",
        "ö",
        "0x",
        "size=",
        ",",
        "opcode=",
        "send",
        "9999999999999999999999",
        "-",
        "max_sge",
        "call=",
        "reg_mr",
        "errno=",
        "\u{2028}",
        "\t",
        "NaN",
        "e308s",
    ];
    for seed in 0..20_000 {
        let draw = |at: u64| mix(seed * 64 + at) as usize;
        let text: String = (0..draw(0) % 12).map(|at| pieces[draw(at as u64 + 1) % pieces.len()]).collect();
        match parse(&text) {
            Ok(rules) => {
                for rule in rules {
                    assert_eq!(one(&rule.to_string()), rule, "{text:?}");
                }
            }
            Err(error) => {
                let line = text.lines().nth(error.line - 1).unwrap_or_else(|| panic!("{text:?}: {error}"));
                assert!(error.column <= line.chars().count() + 1, "{text:?}: {error}");
            }
        }
    }
}

#[test]
fn which_takes_what_it_says() {
    let taken = |which: Which| (1..=7).filter(|k| which.takes(*k, 0)).collect::<Vec<u64>>();
    assert_eq!(taken(Which::All), [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(taken(Which::Nth(3)), [3]);
    assert_eq!(taken(Which::First(2)), [1, 2]);
    assert_eq!(taken(Which::From(6)), [6, 7]);
    assert_eq!(taken(Which::Every(3)), [3, 6]);
    assert!(!Which::Chance(0.0).takes(1, 0) && Which::Chance(1.0).takes(1, u64::MAX));
    let hits = |chance| (0..10_000).filter(|k| Which::Chance(chance).takes(1, mix(*k))).count();
    assert!((900..1100).contains(&hits(0.1)) && (8900..9100).contains(&hits(0.9)));
}
