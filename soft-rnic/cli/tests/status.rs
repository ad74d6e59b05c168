//! `soft-rnic status` of the test process itself.

use std::process::{Command, Output};
use std::ptr;

use rdma_mummy_sys::types::*;
use serde_json::Value;

fn status(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_soft-rnic"));
    command.arg("status").args(arguments).env_remove("SOFT_RNIC_FABRIC").output().expect("it starts")
}

fn words(output: &Output) -> String {
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    String::from_utf8(output.stdout.clone()).expect("text")
}

fn json(arguments: &[&str]) -> Vec<Value> {
    let output = status(&[arguments, &["--json"]].concat());
    let value: Value = serde_json::from_str(&words(&output)).expect("JSON");
    value["processes"].as_array().expect("a list").clone()
}

#[test]
fn a_process_is_shown_with_what_it_has() {
    let own = std::process::id();
    let fabric = format!("status-{own}");
    let mut config = soft_rnic::Config::default();
    config.fabric.clone_from(&fabric);
    let provider = soft_rnic::provider_with(config).expect("the first configuration");
    let lib = provider.verbs();
    assert!(words(&status(&["--fabric", &fabric])).contains(&format!("no process of fabric {fabric}")));
    // SAFETY: each object lives until it is destroyed at the end, in the reverse order; the
    // attributes live during the calls.
    unsafe {
        let list = (lib.ibv_get_device_list)(ptr::null_mut());
        assert!(!list.is_null());
        let context = (lib.ibv_open_device)(*list);
        (lib.ibv_free_device_list)(list);
        assert!(!context.is_null());
        let pd = (lib.ibv_alloc_pd)(context);
        let cq = (lib.ibv_create_cq)(context, 1, ptr::null_mut(), ptr::null_mut(), 0);
        assert!(!pd.is_null() && !cq.is_null());
        let cap = ibv_qp_cap {
            max_send_wr: 1,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let mut init = ibv_qp_init_attr {
            send_cq: cq,
            recv_cq: cq,
            qp_type: ibv_qp_type::IBV_QPT_UC,
            cap,
            ..Default::default()
        };
        let qp = (lib.ibv_create_qp)(pd, &raw mut init);
        assert!(!qp.is_null());
        shown(&fabric, own);
        assert_eq!((lib.ibv_destroy_qp)(qp), 0);
        assert_eq!((lib.ibv_destroy_cq)(cq), 0);
        assert_eq!((lib.ibv_dealloc_pd)(pd), 0);
        assert_eq!((lib.ibv_close_device)(context), 0);
    }
    assert_eq!(json(&["--fabric", &fabric]), Vec::<Value>::new(), "it has closed the device");
}

fn shown(fabric: &str, own: u32) {
    let [process] = &json(&["--fabric", fabric])[..] else { panic!("one process") };
    assert_eq!(process["pid"], own);
    assert_eq!(process["fabric"], fabric);
    let command = process["command"].as_str().expect("a command");
    assert!(command.contains("status"), "{command}");
    let statistics = &process["statistics"];
    assert_eq!(statistics["devices"], serde_json::json!([{ "name": "soft0", "contexts": 1 }]));
    let kinds = serde_json::json!([{ "type": "UC", "state": "RESET", "count": 1 }]);
    assert_eq!(statistics["queue_pairs"], kinds);
    assert_eq!(statistics["completion_queues"], 1);
    assert_eq!(statistics["regions"]["count"], 0);
    assert_eq!(statistics["identifiers"], serde_json::json!({ "count": 0, "listening": 0, "connected": 0 }));
    assert_eq!(statistics["peers"][0]["paths"]["direct"]["messages"], 0);

    let table = words(&status(&["--fabric", fabric]));
    assert!(table.starts_with(&format!("{own}  ")), "{table}");
    for line in [
        "soft0, inline",
        "1 UC RESET",
        "completion queues       1\n",
        "identifiers             0 (0 listening, 0 connected)\n",
    ] {
        assert!(table.contains(line), "{line:?} is missing: {table}");
    }
    let is_own = |process: &Value| process["pid"] == own;
    assert!(!json(&[]).iter().any(is_own), "the default fabric is another");
    assert!(json(&["--all-fabrics"]).iter().any(is_own));
}
