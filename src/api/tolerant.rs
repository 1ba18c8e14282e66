//! Reads what others wrote: a null is like nothing, and a list is only so long.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Longer lists are no honest object's, and would become many times the memory of their text.
const MOST: usize = 1024;

pub fn null_is_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(deserializer: D) -> Result<T, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// A list of at most [`MOST`] items, or null.
pub fn few<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    struct Few<T>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>> Visitor<'de> for Few<T> {
        type Value = Vec<T>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a list of at most {MOST} items")
        }
        fn visit_unit<E: Error>(self) -> Result<Vec<T>, E> {
            Ok(vec![])
        }
        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<T>, A::Error> {
            let mut few = Vec::new();
            while let Some(item) = items.next_element()? {
                if few.len() == MOST {
                    return Err(A::Error::invalid_length(MOST + 1, &self));
                }
                few.push(item);
            }
            Ok(few)
        }
    }
    deserializer.deserialize_any(Few(PhantomData))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct List {
        #[serde(default, deserialize_with = "few")]
        items: Vec<u8>,
    }

    #[test]
    fn a_list_may_be_absent_or_null_and_is_not_too_long() {
        let length = |json: &str| serde_json::from_str::<List>(json).map(|list| list.items.len()).map_err(|e| e.to_string());
        assert_eq!(length("{}"), Ok(0));
        assert_eq!(length(r#"{"items": null}"#), Ok(0));
        assert_eq!(length(r#"{"items": [1, 2]}"#), Ok(2));
        let many = format!(r#"{{"items": [{}]}}"#, vec!["1"; MOST + 1].join(","));
        assert!(length(&many).unwrap_err().contains("at most 1024"));
    }
}
