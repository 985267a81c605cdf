//! Parameters by name: a statement writes `$turn_id`, and the value is bound beside that name.
//!
//! The names become numbers when the program is compiled, so a statement costs nothing more at run
//! time. A name that is not bound, or bound and not used, does not compile.

use sqlx::{Postgres, postgres::PgArguments};

/// A statement whose rows decode to `O`.
pub(in crate::store) type QueryAs<'q, O> = sqlx::query::QueryAs<'q, Postgres, O, PgArguments>;

/// Creates a query whose parameters are bound by name.
///
/// `named!(query_as(SQL), { org_id: org, turn_id: turn })` binds `$org_id` and `$turn_id`. A third
/// argument `Columns = columns` adds the parameters of a group: those of `Columns::NAMES`, which
/// `Columns::bound` binds.
macro_rules! named {
    ($query:ident($sql:expr), { $($name:ident: $value:expr),+ $(,)? }) => {
        sqlx::$query($crate::store::parameter::numbered!($sql, [$($name)+]))$(.bind($value))+
    };
    ($query:ident($sql:expr), { $($name:ident: $value:expr),+ $(,)? }, $group:ident = $columns:expr) => {
        $columns.bound(
            sqlx::$query($crate::store::parameter::numbered!($sql, [$($name)+], $group))$(.bind($value))+
        )
    };
}
pub(in crate::store) use named;

/// Makes fields of a struct a group of parameters for [`named`].
macro_rules! group {
    ($group:ident: $($name:ident)+) => {
        impl $group {
            pub(in crate::store) const NAMES: &[&str] = &[$(stringify!($name)),+];

            pub(in crate::store) fn bound<O>(
                self,
                query: $crate::store::parameter::QueryAs<'_, O>,
            ) -> $crate::store::parameter::QueryAs<'_, O> {
                query$(.bind(self.$name))+
            }
        }
    };
}
pub(in crate::store) use group;

/// A table `m` of one row, from parameters named as its columns. Not materialized, so the planner
/// sees the parameters.
macro_rules! one_row {
    ($($name:ident $kind:ident)+) => {
        concat!(
            "m as not materialized (
    select 1::bigint as member",
            $(", $", stringify!($name), "::", stringify!($kind), " as ", stringify!($name),)+
            "
)"
        )
    };
}
pub(in crate::store) use one_row;

/// A table `m` with a row for each element of the parameters, which are arrays named as its columns.
/// `member` is the number of the row, from 1.
macro_rules! many_rows {
    ($first:ident $first_kind:ident $($name:ident $kind:ident)+) => {
        concat!(
            "m as (
    select *
    from unnest($", stringify!($first), "::", stringify!($first_kind), "[]",
            $(", $", stringify!($name), "::", stringify!($kind), "[]",)+
            ") with ordinality
        as m (", stringify!($first), $(", ", stringify!($name),)+ ", member)
)"
        )
    };
}
pub(in crate::store) use many_rows;

/// Replaces the names of a statement by their numbers, in a constant.
macro_rules! numbered {
    ($sql:expr, [$($name:ident)+] $(, $group:ident)?) => {{
        const NAMES: &[&[&str]] = &[&[$(stringify!($name)),+] $(, $group::NAMES)?];
        const LENGTH: usize = $crate::store::parameter::number::<0>($sql, NAMES).1;
        const TEXT: [u8; LENGTH] = $crate::store::parameter::number::<LENGTH>($sql, NAMES).0;
        const STATEMENT: &str = match std::str::from_utf8(&TEXT) {
            Ok(statement) => statement,
            Err(_) => panic!("only ASCII is replaced by ASCII"),
        };
        STATEMENT
    }};
}
pub(in crate::store) use numbered;

/// Maximum of parameters of one statement; Postgres accepts 65,535.
const PARAMETERS_MAX: usize = 64;

/// Returns the statement with numbers, and its length. With `N` of 0, only the length.
///
/// # Panics
/// When the names of the statement and those that are bound differ. All calls are constants, so
/// this is an error of compilation.
pub(in crate::store) const fn number<const N: usize>(sql: &str, names: &[&[&str]]) -> ([u8; N], usize) {
    let sql = sql.as_bytes();
    let (mut text, mut length, mut at) = ([0; N], 0, 0);
    let mut is_used = [false; PARAMETERS_MAX];
    while at < sql.len() {
        put(&mut text, &mut length, sql[at]);
        at += 1;
        if sql[at - 1] != b'$' {
            continue;
        }
        let start = at;
        while at < sql.len() && (sql[at].is_ascii_alphanumeric() || sql[at] == b'_') {
            at += 1;
        }
        let place = place_of(sql, start, at, names);
        is_used[place] = true;
        if place >= 9 {
            put(&mut text, &mut length, digit((place + 1) / 10));
        }
        put(&mut text, &mut length, digit((place + 1) % 10));
    }
    let mut place = 0;
    while place < count(names) {
        assert!(is_used[place], "a parameter is bound that the statement does not name");
        place += 1;
    }
    (text, length)
}

const fn put<const N: usize>(text: &mut [u8; N], length: &mut usize, byte: u8) {
    if *length < N {
        text[*length] = byte;
    }
    *length += 1;
}

const fn digit(digit: usize) -> u8 {
    b'0' + digit as u8
}

const fn count(names: &[&[&str]]) -> usize {
    let (mut group, mut count) = (0, 0);
    while group < names.len() {
        count += names[group].len();
        group += 1;
    }
    assert!(count <= PARAMETERS_MAX, "the statement has too many parameters");
    count
}

/// Returns the position of the name `sql[start..end]` among all names.
const fn place_of(sql: &[u8], start: usize, end: usize, names: &[&[&str]]) -> usize {
    let (mut group, mut place) = (0, 0);
    while group < names.len() {
        let mut of_group = 0;
        while of_group < names[group].len() {
            if is_equal(sql, start, end, names[group][of_group].as_bytes()) {
                return place;
            }
            of_group += 1;
            place += 1;
        }
        group += 1;
    }
    panic!("the statement names a parameter that is not bound");
}

const fn is_equal(sql: &[u8], start: usize, end: usize, name: &[u8]) -> bool {
    if end - start != name.len() {
        return false;
    }
    let mut at = 0;
    while at < name.len() {
        if sql[start + at] != name[at] {
            return false;
        }
        at += 1;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::number;

    struct Group;

    impl Group {
        const NAMES: &[&str] = &["kind", "kinds"];
    }

    #[test]
    fn names_become_numbers_in_the_order_in_which_they_are_bound() {
        let sql = numbered!("select $kinds::text[], $org_id = $kind, $org", [org org_id], Group);
        assert_eq!(sql, "select $4::text[], $2 = $3, $1");
    }

    #[test]
    fn a_tenth_parameter_has_two_digits() {
        let sql = numbered!("select $a$b$c$d$e$f$g$h$i$j, $a", [a b c d e f g h i j]);
        assert_eq!(sql, "select $1$2$3$4$5$6$7$8$9$10, $1");
    }

    #[test]
    #[should_panic(expected = "a parameter that is not bound")]
    fn an_unbound_name_is_refused() {
        number::<0>("select $org, $turn", &[&["org"]]);
    }

    #[test]
    #[should_panic(expected = "a parameter is bound")]
    fn an_unused_name_is_refused() {
        number::<0>("select $org", &[&["org"], &["turn"]]);
    }
}
