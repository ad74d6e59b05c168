//! [`Endpoint`] in serde's data model: a struct of six fields.
//!
//! These are the implementations that serde's derive macro would write. The macro would take a
//! tenth of the build time of a program whose only use of serde is this crate
//! (`docs/decisions/0001-build-time.md`).

use std::fmt;

use serde_core::de::{Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_core::ser::SerializeStruct;
use serde_core::{Deserialize, Deserializer, Serialize, Serializer};

use super::connect::Endpoint;

const NAME: &str = "Endpoint";
const FIELDS: &[&str] = &["qp_number", "packet_seq_num", "lid", "gid", "mtu", "ethernet"];

impl Serialize for Endpoint {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { qp_number, packet_seq_num, lid, gid, mtu, ethernet } = self;
        let mut fields = serializer.serialize_struct(NAME, FIELDS.len())?;
        fields.serialize_field("qp_number", qp_number)?;
        fields.serialize_field("packet_seq_num", packet_seq_num)?;
        fields.serialize_field("lid", lid)?;
        fields.serialize_field("gid", gid)?;
        fields.serialize_field("mtu", mtu)?;
        fields.serialize_field("ethernet", ethernet)?;
        fields.end()
    }
}

impl<'de> Deserialize<'de> for Endpoint {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_struct(NAME, FIELDS, Fields)
    }
}

#[derive(Clone, Copy)]
struct Fields;

impl<'de> Visitor<'de> for Fields {
    type Value = Endpoint;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("struct Endpoint")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut fields: A) -> Result<Endpoint, A::Error> {
        let missing = |index| move || A::Error::invalid_length(index, &self);
        Ok(Endpoint {
            qp_number: fields.next_element()?.ok_or_else(missing(0))?,
            packet_seq_num: fields.next_element()?.ok_or_else(missing(1))?,
            lid: fields.next_element()?.ok_or_else(missing(2))?,
            gid: fields.next_element()?.ok_or_else(missing(3))?,
            mtu: fields.next_element()?.ok_or_else(missing(4))?,
            ethernet: fields.next_element()?.ok_or_else(missing(5))?,
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Endpoint, A::Error> {
        let (mut qp_number, mut packet_seq_num, mut lid) = (None, None, None);
        let (mut gid, mut mtu, mut ethernet) = (None, None, None);
        while let Some(name) = fields.next_key::<String>()? {
            match &name[..] {
                "qp_number" => set(&mut qp_number, FIELDS[0], &mut fields)?,
                "packet_seq_num" => set(&mut packet_seq_num, FIELDS[1], &mut fields)?,
                "lid" => set(&mut lid, FIELDS[2], &mut fields)?,
                "gid" => set(&mut gid, FIELDS[3], &mut fields)?,
                "mtu" => set(&mut mtu, FIELDS[4], &mut fields)?,
                "ethernet" => set(&mut ethernet, FIELDS[5], &mut fields)?,
                _ => drop(fields.next_value::<IgnoredAny>()?),
            }
        }
        let missing = |index: usize| move || A::Error::missing_field(FIELDS[index]);
        Ok(Endpoint {
            qp_number: qp_number.ok_or_else(missing(0))?,
            packet_seq_num: packet_seq_num.ok_or_else(missing(1))?,
            lid: lid.ok_or_else(missing(2))?,
            gid: gid.unwrap_or_default(),
            mtu: mtu.ok_or_else(missing(4))?,
            ethernet: ethernet.ok_or_else(missing(5))?,
        })
    }
}

/// Reads the value of a field that must not appear twice.
fn set<'de, A: MapAccess<'de>, T: Deserialize<'de>>(
    field: &mut Option<T>,
    name: &'static str,
    fields: &mut A,
) -> Result<(), A::Error> {
    if field.replace(fields.next_value()?).is_some() {
        return Err(A::Error::duplicate_field(name));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_derive_macro_would_read() {
        let whole =
            r#"{"qp_number":7,"packet_seq_num":8,"lid":0,"gid":"fe80::1","mtu":4096,"ethernet":true}"#;
        let endpoint: Endpoint = serde_json::from_str(whole).unwrap();
        // A GID is written with all of its digits.
        let written = whole.replace("fe80::1", "fe80:0000:0000:0000:0000:0000:0000:0001");
        assert_eq!(serde_json::to_string(&endpoint).unwrap(), written);
        let sequence = r#"[7,8,0,"fe80::1",4096,true]"#;
        assert_eq!(serde_json::from_str::<Endpoint>(sequence).unwrap(), endpoint);
        let more = whole.replace("\"lid\"", "\"other\":[1],\"lid\"");
        assert_eq!(serde_json::from_str::<Endpoint>(&more).unwrap(), endpoint);
        let no_gid = whole.replace("\"gid\":\"fe80::1\",", "");
        assert_eq!(serde_json::from_str::<Endpoint>(&no_gid).unwrap(), Endpoint { gid: None, ..endpoint });
        for (text, reason) in [
            (whole.replace("\"mtu\":4096,", ""), "missing field `mtu`"),
            (whole.replace("\"mtu\"", "\"lid\""), "duplicate field `lid`"),
            (sequence.replace(",true", ""), "invalid length 5, expected struct Endpoint"),
            ("7".to_owned(), "expected struct Endpoint"),
        ] {
            let error = serde_json::from_str::<Endpoint>(&text).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
}
