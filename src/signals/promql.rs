//! Confines a PromQL query to one namespace: every selector in it gets a matcher on the namespace label, so that a policy can
//! measure its own namespace's pods and learn nothing of others'.

use promql_parser::label::{MatchOp, Matcher, Matchers};
use promql_parser::parser::{
    self, AggregateExpr, BinaryExpr, Call, Expr, MatrixSelector, ParenExpr, SubqueryExpr, UnaryExpr, VectorSelector,
};

/// Longer queries are not read.
pub const MOST_BYTES: usize = 4096;

/// A query is read recursively, and so is what it was read into. Each of these opens or continues at most one level, so this
/// many keep the recursion well within a thread's stack.
const MOST_OPERATORS: usize = 256;

/// The parser compiles each regular expression, and a short one can be large once compiled.
const MOST_EXPRESSIONS: usize = 16;
const EXPRESSION_BYTES: usize = 256 << 10;

/// The query with `label="namespace"` in each of its selectors; or why that cannot be done.
pub fn confine(query: &str, label: &str, namespace: &str) -> Result<String, String> {
    check_size(query)?;
    let mut expression = parse(query)?;
    let matcher = Matcher::new(MatchOp::Equal, label, namespace);
    visit(&mut expression, &mut |matchers| {
        if !matchers.or_matchers.is_empty() {
            return Err("`or` between the matchers of a selector cannot be confined".into());
        }
        matchers.matchers.retain(|other| *other != matcher);
        matchers.matchers.push(matcher.clone());
        Ok(())
    })?;
    let confined = expression.to_string();
    drop(expression);
    // What was printed is read again, or a quotation mark in the wrong place could undo all of this.
    let mut read_back = parse(&confined)?;
    visit(&mut read_back, &mut |matchers| {
        let is_confined = matchers.matchers.contains(&matcher) && matchers.or_matchers.is_empty();
        if is_confined { Ok(()) } else { Err("cannot be confined: it does not survive being printed".into()) }
    })?;
    if read_back.to_string() == confined { Ok(confined) } else { Err("cannot be confined: it reads differently once printed".into()) }
}

/// Refuses what would cost too much to read. The parser has no bounds of its own.
fn check_size(query: &str) -> Result<(), String> {
    if query.len() > MOST_BYTES {
        return Err(format!("found {} bytes, wanted at most {MOST_BYTES}", query.len()));
    }
    let words = query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':');
    let operators = query.matches(|c: char| "([{+-*/%^<>=!".contains(c)).count()
        + words.filter(|word| matches!(word.to_lowercase().as_str(), "and" | "or" | "unless" | "atan2")).count();
    if operators > MOST_OPERATORS {
        return Err(format!("found {operators} operators and brackets, wanted at most {MOST_OPERATORS}"));
    }
    let expressions: Vec<&str> = query.split("=~").flat_map(|part| part.split("!~")).skip(1).collect();
    if expressions.len() > MOST_EXPRESSIONS {
        return Err(format!("found {} regular expressions, wanted at most {MOST_EXPRESSIONS}", expressions.len()));
    }
    for expression in expressions {
        let pattern = quoted(expression.trim_start())?;
        if let Err(regex::Error::CompiledTooBig(_)) =
            regex::RegexBuilder::new(&format!("^(?:{pattern})$")).size_limit(EXPRESSION_BYTES).build()
        {
            return Err(format!("the regular expression `{pattern}` is too large once compiled"));
        }
    }
    Ok(())
}

/// The text of a string that begins here, without its quotes and escapes. What the parser would read otherwise is refused: the
/// expression that is measured must be the one that is compiled.
fn quoted(text: &str) -> Result<String, String> {
    let mut characters = text.chars();
    let Some(quote) = characters.next().filter(|c| "\"'`".contains(*c)) else {
        return Err("found no quoted text right behind =~ or !~, wanted one".into());
    };
    let mut inside = String::new();
    while let Some(c) = characters.next() {
        match c {
            c if c == quote => return Ok(inside),
            '\\' if quote != '`' => match characters.next() {
                Some(escaped @ ('\\' | '"' | '\'')) => inside.push(escaped),
                other => {
                    let other = other.map(String::from).unwrap_or_default();
                    return Err(format!("found the escape `\\{other}` in a regular expression, wanted only `\\\\` and quotes escaped"));
                }
            },
            c => inside.push(c),
        }
    }
    Err("found a text that is never closed, wanted its closing quote".into())
}

/// Reads a query. The parser panics on some numbers, such as a range of 1e30 seconds.
fn parse(query: &str) -> Result<Expr, String> {
    match std::panic::catch_unwind(|| parser::parse(query)) {
        Ok(read) => read.map_err(|e| format!("cannot be read as PromQL: {}", e.trim())),
        Err(_) => Err("cannot be read as PromQL: a number in it is out of range".into()),
    }
}

fn visit(expression: &mut Expr, change: &mut impl FnMut(&mut Matchers) -> Result<(), String>) -> Result<(), String> {
    match expression {
        Expr::VectorSelector(VectorSelector { matchers, .. }) => change(matchers),
        Expr::MatrixSelector(MatrixSelector { vs, .. }) => change(&mut vs.matchers),
        Expr::Unary(UnaryExpr { expr, .. }) | Expr::Paren(ParenExpr { expr }) | Expr::Subquery(SubqueryExpr { expr, .. }) => {
            visit(expr, change)
        }
        Expr::Aggregate(AggregateExpr { expr, param, .. }) => {
            visit(expr, change)?;
            param.iter_mut().try_for_each(|param| visit(param, change))
        }
        Expr::Binary(BinaryExpr { lhs, rhs, .. }) => {
            visit(lhs, change)?;
            visit(rhs, change)
        }
        Expr::Call(Call { func, args }) => {
            // `info` looks for series that no selector names.
            if func.name == "info" {
                return Err("the function `info` cannot be confined".into());
            }
            args.args.iter_mut().try_for_each(|arg| visit(arg, change))
        }
        Expr::NumberLiteral(_) | Expr::StringLiteral(_) => Ok(()),
        Expr::Extension(_) => Err("an extension of PromQL cannot be confined".into()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn confined(query: &str) -> String {
        confine(query, "namespace", "shop").unwrap_or_else(|e| panic!("{query}: {e}"))
    }

    #[test]
    fn every_selector_gets_the_matcher() {
        for (query, wanted) in [
            ("work", r#"work{namespace="shop"}"#),
            (r#"sum by (pod) (work{app="a"})"#, r#"sum by (pod) (work{app="a",namespace="shop"})"#),
            ("rate(work[5m])", r#"rate(work{namespace="shop"}[5m])"#),
            ("a / on (pod) b", r#"a{namespace="shop"} / on (pod) b{namespace="shop"}"#),
            ("max_over_time(rate(a[1m])[10m:1m])", r#"max_over_time(rate(a{namespace="shop"}[1m])[10m:1m])"#),
            ("topk(scalar(b), a)", r#"topk(scalar(b{namespace="shop"}), a{namespace="shop"})"#),
            ("-(a) offset 5m", r#"-(a{namespace="shop"})"#),
            (r#"{__name__="a"}"#, r#"{__name__="a",namespace="shop"}"#),
            (r#"absent(a) or vector(0)"#, r#"absent(a{namespace="shop"}) or vector(0)"#),
        ] {
            let found = confine(query, "namespace", "shop");
            if query.contains(") offset") {
                // An offset belongs to a selector; whether it is refused or not, nothing may slip through.
                assert!(found.is_err() || found.unwrap().contains(r#"namespace="shop""#));
            } else {
                assert_eq!(found.as_deref(), Ok(wanted), "{query}");
            }
        }
    }

    #[test]
    fn a_matcher_on_the_label_that_is_there_cannot_widen_it() {
        assert_eq!(confined(r#"work{namespace="shop"}"#), r#"work{namespace="shop"}"#);
        // Both must hold, so this answers nothing.
        assert_eq!(confined(r#"work{namespace="other"}"#), r#"work{namespace="other",namespace="shop"}"#);
        assert_eq!(confined(r#"work{namespace=~".*"}"#), r#"work{namespace="shop",namespace=~".*"}"#);
    }

    #[test]
    fn what_cannot_be_confined_is_refused_with_the_reason() {
        for (query, why) in [
            ("sum(", "cannot be read as PromQL"),
            ("nonsense(work)", "cannot be read as PromQL"),
            (r#"work{a="b" or c="d"}"#, "`or`"),
            ("", "cannot be read as PromQL"),
            (&"(".repeat(100_000), "wanted at most 4096"),
            (&"(".repeat(1000), "wanted at most 256"),
            (&"a+".repeat(1000), "wanted at most 256"),
            (&"a and ".repeat(600), "wanted at most 256"),
            (&"a and#\na ".repeat(400), "wanted at most 256"),
            ("rate(work[1e30])", "cannot be read as PromQL"),
            ("work offset 1e30", "cannot be read as PromQL"),
            (r#"work{a=~"\\w{300}"}"#, "too large once compiled"),
            (r"work{a=~'\\w{300}'}", "too large once compiled"),
            (r#"work{a=~"x\"\\w{300}"}"#, "too large once compiled"),
            (r#"work{a=~"\x5cw{180}"}"#, r"found the escape `\x`"),
            (r#"work{a=~"\u005cw{180}"}"#, r"found the escape `\u`"),
            ("work{a=~# a comment\n\"\\\\w{300}\"}", "found no quoted text"),
            ("work{a=~b}", "found no quoted text"),
            (r#"work{a=~"b}"#, "never closed"),
            (&format!("work{{{}}}", vec!["a=~\"b\""; 20].join(",")), "regular expressions, wanted at most 16"),
        ] {
            let found = confine(query, "namespace", "shop").unwrap_err();
            assert!(found.contains(why), "{found}");
        }
    }

    #[test]
    fn the_deepest_query_that_is_let_through_fits_a_small_stack() {
        let thread = std::thread::Builder::new().stack_size(2 << 20);
        let deep = || {
            for query in
                ["(".repeat(120) + "a" + &")".repeat(120), "-".repeat(250) + "a", vec!["a"; 250].join("+"), vec!["a"; 250].join("^")]
            {
                assert!(confine(&query, "namespace", "shop").is_ok(), "{query}");
            }
        };
        thread.spawn(deep).unwrap().join().unwrap();
    }

    proptest! {
        /// Whatever stands between the quotes of a label's value, it stays there.
        #[test]
        fn a_value_cannot_break_out(value in "[a\"'`\\\\{}()=~,\n or]{0,30}") {
            for query in [format!("work{{a=\"{value}\"}}"), format!("work{{a='{value}'}}"), format!("label_replace(work, \"{value}\", \"$1\", \"b\", \"(.*)\")")] {
                let Ok(found) = confine(&query, "namespace", "shop") else { continue };
                let mut read_back = parser::parse(&found).unwrap();
                let mut selectors = 0;
                visit(&mut read_back, &mut |matchers| {
                    selectors += 1;
                    let confined = matchers.matchers.iter().any(|m| *m == Matcher::new(MatchOp::Equal, "namespace", "shop"));
                    if confined && matchers.or_matchers.is_empty() { Ok(()) } else { Err(format!("{query} became {found}")) }
                }).map_err(TestCaseError::fail)?;
                prop_assert!(selectors > 0);
            }
        }
    }
}
