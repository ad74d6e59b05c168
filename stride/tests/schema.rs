//! Holds documents against `schema/result.schema.json`: the keywords of JSON Schema that it uses.
//!
//! A crate for all of JSON Schema brings forty others, which take a tenth of the time that the workspace's tests take to build.
//! A keyword or pattern that is unknown here panics, so that the schema cannot say more than is checked.

use serde_json::Value;

/// Keywords that describe, and restrict nothing by themselves.
const ANNOTATIONS: [&str; 5] = ["$schema", "$id", "$defs", "title", "description"];

/// The patterns of the schema, and what they mean.
const PATTERNS: [(&str, fn(&str) -> bool); 2] = [
    ("^[0-9a-f]{32}$", is_run_id),
    (r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?Z$", is_time),
];

/// The schema.
pub(crate) fn schema() -> Value {
    serde_json::from_str(include_str!("../schema/result.schema.json")).unwrap()
}

/// Where a document is not as the schema says, and why.
pub(crate) fn errors(schema: &Value, document: &Value) -> Vec<String> {
    let mut check = Check { root: schema, errors: Vec::new() };
    check.value(schema, document, "");
    check.errors
}

struct Check<'a> {
    root: &'a Value,
    errors: Vec<String>,
}

impl Check<'_> {
    fn expect(&mut self, holds: bool, path: &str, keyword: &str, found: &Value) {
        if !holds {
            self.errors.push(format!("{path}: {keyword} does not hold for {found}"));
        }
    }

    fn value(&mut self, schema: &Value, value: &Value, path: &str) {
        let schema = match schema {
            Value::Bool(allowed) => return self.expect(*allowed, path, "false", value),
            schema => schema.as_object().expect("a schema is an object, or true or false"),
        };
        for (keyword, wanted) in schema {
            match keyword.as_str() {
                "type" => {
                    let is = |name: &Value| is_of_type(value, name.as_str().unwrap());
                    let holds = wanted.as_array().map_or_else(|| is(wanted), |names| names.iter().any(is));
                    self.expect(holds, path, "type", value);
                }
                "const" => self.expect(value == wanted, path, keyword, value),
                "enum" => self.expect(wanted.as_array().unwrap().contains(value), path, keyword, value),
                "minimum" => {
                    let least = wanted.as_f64().unwrap();
                    self.expect(value.as_f64().is_none_or(|number| number >= least), path, keyword, value);
                }
                "pattern" => {
                    let known = PATTERNS.iter().find(|(pattern, _)| wanted == pattern);
                    let (_, matches) = known.unwrap_or_else(|| panic!("unknown pattern {wanted}"));
                    self.expect(value.as_str().is_none_or(matches), path, keyword, value);
                }
                "minItems" => {
                    let least = wanted.as_u64().unwrap();
                    let holds = value.as_array().is_none_or(|items| items.len() as u64 >= least);
                    self.expect(holds, path, keyword, value);
                }
                "required" => {
                    for name in wanted.as_array().unwrap() {
                        let holds = value
                            .as_object()
                            .is_none_or(|members| members.contains_key(name.as_str().unwrap()));
                        self.expect(holds, path, &format!("required {name}"), value);
                    }
                }
                "properties" => {
                    for (name, schema) in wanted.as_object().unwrap() {
                        if let Some(member) = value.get(name) {
                            self.value(schema, member, &format!("{path}/{name}"));
                        }
                    }
                }
                "additionalProperties" => {
                    let known = schema.get("properties").and_then(Value::as_object);
                    for (name, member) in value.as_object().into_iter().flatten() {
                        if !known.is_some_and(|known| known.contains_key(name)) {
                            self.value(wanted, member, &format!("{path}/{name}"));
                        }
                    }
                }
                "prefixItems" => {
                    let items = value.as_array().into_iter().flatten();
                    for (at, (schema, item)) in wanted.as_array().unwrap().iter().zip(items).enumerate() {
                        self.value(schema, item, &format!("{path}/{at}"));
                    }
                }
                "items" => {
                    let first = schema.get("prefixItems").and_then(Value::as_array).map_or(0, Vec::len);
                    for (at, item) in value.as_array().into_iter().flatten().enumerate().skip(first) {
                        self.value(wanted, item, &format!("{path}/{at}"));
                    }
                }
                "$ref" => {
                    let pointer =
                        wanted.as_str().and_then(|name| name.strip_prefix('#')).expect("within the schema");
                    let target = self.root.pointer(pointer).unwrap_or_else(|| panic!("no {wanted}"));
                    self.value(target, value, path);
                }
                keyword => assert!(ANNOTATIONS.contains(&keyword), "unknown keyword {keyword}"),
            }
        }
    }
}

fn is_of_type(value: &Value, name: &str) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => {
            value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|number| number.fract() == 0.0)
        }
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        name => panic!("unknown type {name}"),
    }
}

fn is_run_id(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// `2026-01-31T23:59:59Z`, with or without a fraction.
fn is_time(text: &str) -> bool {
    let shape: String = text.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    let Some(fraction) = shape.strip_prefix("0000-00-00T00:00:00").and_then(|rest| rest.strip_suffix('Z'))
    else {
        return false;
    };
    let digits = fraction.strip_prefix('.');
    fraction.is_empty()
        || digits.is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|byte| byte == b'0'))
}
