//! Members of an event that have a short and a long form: a name or an object, one or several.
//!
//! Pure. The visitors replace serde's untagged enums, which buffer their whole input and put Rust
//! names into error messages.

use std::fmt;

use serde::de::{
    Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor, value::MapAccessDeserializer,
};

use super::{Author, AuthorPerson, Authors, Category, FullCategory};

impl<'de> Deserialize<'de> for Author {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reading;

        impl<'de> Visitor<'de> for Reading {
            type Value = Author;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an author: a name, or an object with a name")
            }

            fn visit_str<E: Error>(self, name: &str) -> Result<Author, E> {
                Ok(Author::Name(name.into()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Author, A::Error> {
                AuthorPerson::deserialize(MapAccessDeserializer::new(map)).map(Author::Person)
            }
        }

        from.deserialize_any(Reading)
    }
}

impl<'de> Deserialize<'de> for Authors {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reading;

        impl<'de> Visitor<'de> for Reading {
            type Value = Authors;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an author: a name, an object with a name, or an array of these")
            }

            fn visit_str<E: Error>(self, name: &str) -> Result<Authors, E> {
                Ok(Authors::One(Author::Name(name.into())))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Authors, A::Error> {
                let person = AuthorPerson::deserialize(MapAccessDeserializer::new(map))?;
                Ok(Authors::One(Author::Person(person)))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Authors, A::Error> {
                let mut authors = vec![];
                while let Some(author) = items.next_element()? {
                    authors.push(author);
                }
                Ok(Authors::Many(authors))
            }
        }

        from.deserialize_any(Reading)
    }
}

impl<'de> Deserialize<'de> for Category {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reading;

        impl<'de> Visitor<'de> for Reading {
            type Value = Category;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a category: a term, or an object with a term")
            }

            fn visit_str<E: Error>(self, term: &str) -> Result<Category, E> {
                Ok(Category::Term(term.into()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Category, A::Error> {
                FullCategory::deserialize(MapAccessDeserializer::new(map)).map(Category::Full)
            }
        }

        from.deserialize_any(Reading)
    }
}
