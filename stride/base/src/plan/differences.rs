//! Differences between the two sides' parameters.

use super::TestPlan;

/// A parameter with different values on the two sides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Its description, with its flag.
    pub name: &'static str,
    /// The client's value, which is used.
    pub client: String,
    /// The server's value, which is ignored.
    pub server: String,
}

/// All parameters that differ.
pub fn differences(client: &TestPlan, server: &TestPlan) -> Vec<Difference> {
    let value = |given: Option<u32>| given.map_or("the default".to_owned(), |given| given.to_string());
    let rows = |plan: &TestPlan| {
        let rows = [
            ("operation", plan.operation.to_string()),
            ("measure", plan.measure.to_string()),
            ("sizes (-s, -a, --max-msg-size)", plan.sizes.to_string()),
            ("iterations (-n)", plan.iterations.to_string()),
            ("depth (-t)", plan.tx_depth.to_string()),
            ("connection (-c)", plan.connection.to_string()),
            ("receive depth (-r)", value(plan.rx_depth)),
            ("post list (-l)", plan.post_list.to_string()),
            ("list of receives (--recv-post-list)", plan.recv_post_list.to_string()),
            ("seconds (-D)", plan.duration.map_or("the default".to_owned(), |time| time.to_string())),
            ("reversed (--reversed)", plan.reversed.to_string()),
            ("CQ moderation (-Q)", value(plan.cq_mod)),
            ("inline size (-I)", value(plan.inline_size)),
            ("outstanding reads (-o)", value(plan.outstanding.map(u32::from))),
            ("queue pairs (-q)", plan.queue_pairs.to_string()),
            ("bidirectional (-b)", plan.bidirectional.to_string()),
            ("data validation", plan.data_validation.to_string()),
            ("threads (--threads)", value(plan.threads)),
            ("device's clock (--clock)", plan.device_clock.to_string()),
            ("rate (--rate)", plan.rate.map_or("as fast as can be".to_owned(), |rate| rate.to_string())),
            ("warm-up (--warmup)", plan.warm_up.map_or("none".to_owned(), |warm_up| warm_up.to_string())),
        ];
        rows.into_iter()
            .chain(plan.way_rows())
            .chain(plan.queue_rows())
            .chain([("relaxed ordering (--relaxed-ordering)", plan.ordering.to_string())])
    };
    let pairs = rows(client).zip(rows(server));
    let differing = pairs.filter(|((_, client), (_, server))| client != server);
    differing.map(|((name, client), (_, server))| Difference { name, client, server }).collect()
}
