//! The built-in suites.

/// Names and texts; the first part of a name tells whose measurements the suite repeats.
pub(super) const SHIPPED: [(&str, &str); 9] = [
    ("alluxio-all", include_str!("../../suites/alluxio-all.toml")),
    ("alluxio-basic", include_str!("../../suites/alluxio-basic.toml")),
    ("alluxio-latency", include_str!("../../suites/alluxio-latency.toml")),
    ("alluxio-stress", include_str!("../../suites/alluxio-stress.toml")),
    ("alluxio-stress-read", include_str!("../../suites/alluxio-stress-read.toml")),
    ("alluxio-stress-write", include_str!("../../suites/alluxio-stress-write.toml")),
    ("blog-bw", include_str!("../../suites/blog-bw.toml")),
    ("blog-latency", include_str!("../../suites/blog-latency.toml")),
    ("blog-maxed", include_str!("../../suites/blog-maxed.toml")),
];

/// The text of the suite with this name.
pub(super) fn find(name: &str) -> Option<&'static str> {
    SHIPPED.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}
