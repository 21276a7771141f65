//! Which mutants there are: comparisons that are turned, conditions negated, operators exchanged, statements left out,
//! functions that return at once.

use crate::compiled::{is_left_out, of_statement};
use proc_macro2::Span;
use std::fmt;
use std::ops::Range;
use std::path::Path;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, BinOp, Block, Expr, ReturnType, Signature, Stmt, Type, UnOp};

/// One change.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Mutant {
    pub(crate) package: &'static str,
    /// Below the workspace.
    pub(crate) file: String,
    pub(crate) line: usize,
    /// In words.
    pub(crate) what: String,
    pub(crate) edit: Edit,
    /// It was chosen by hand.
    pub(crate) is_promise: bool,
}

/// What is done to the bytes of a file when the mutant is compiled in.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Edit {
    /// An expression becomes another one.
    Replace(Range<usize>, String),
    /// A statement is left out.
    Leave(Range<usize>),
    /// Behind the brace at this place stands a `return`.
    Return(usize, String),
}

impl Edit {
    pub(crate) fn range(&self) -> Range<usize> {
        match self {
            Edit::Replace(range, _) | Edit::Leave(range) => range.clone(),
            Edit::Return(at, _) => *at..*at,
        }
    }
}

impl fmt::Display for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{} {}", self.file, self.line, self.what)
    }
}

/// All of a package's, in its sources below `folder`; tests are left as they are.
pub(crate) fn in_package(
    root: &Path,
    package: &'static str,
    folder: &str,
    found: &mut Vec<Mutant>,
) -> Result<(), String> {
    let mut entries: Vec<_> = std::fs::read_dir(root.join(folder))
        .map_err(|e| format!("{folder}: {e}"))?
        .flatten()
        .collect();
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let name = entry.file_name().to_string_lossy().into_owned();
        let file = format!("{folder}/{name}");
        let is_test = name.contains("tests") || name == "double" || name.contains("hooks");
        if is_test {
            continue;
        }
        if entry.path().is_dir() {
            in_package(root, package, &file, found)?;
        } else if name.ends_with(".rs") {
            let text = std::fs::read_to_string(entry.path()).map_err(|e| format!("{file}: {e}"))?;
            found.extend(in_text(package, &file, &text)?);
        }
    }
    Ok(())
}

fn in_text(package: &'static str, file: &str, text: &str) -> Result<Vec<Mutant>, String> {
    let parsed = syn::parse_file(text).map_err(|e| format!("{file}: {e}"))?;
    let mut finder = Finder { package, file, text, found: Vec::new() };
    finder.visit_file(&parsed);
    Ok(finder.found)
}

struct Finder<'a> {
    package: &'static str,
    file: &'a str,
    text: &'a str,
    found: Vec<Mutant>,
}

impl Finder<'_> {
    fn add(&mut self, span: Span, what: String, edit: Edit) {
        let (package, file) = (self.package, self.file.to_owned());
        let line = span.start().line;
        self.found.push(Mutant { package, file, line, what, edit, is_promise: false });
    }

    fn text(&self, span: Span) -> &str {
        self.text.get(span.byte_range()).unwrap_or("")
    }

    /// The same, in a line.
    fn short(&self, span: Span) -> String {
        let words: Vec<&str> = self.text(span).split_whitespace().collect();
        let text = words.join(" ");
        if text.chars().count() > 60 {
            text.chars().take(57).chain("...".chars()).collect()
        } else {
            text
        }
    }

    fn function(&mut self, attributes: &[Attribute], signature: &Signature, block: &Block) {
        if is_left_out(attributes)
            || signature.constness.is_some()
            || block.stmts.is_empty()
            || is_never_called(block)
        {
            return;
        }
        let at = block.brace_token.span.open().byte_range().end;
        for value in values(&signature.output) {
            let what = format!("fn {} returns {value}", signature.ident).trim_end().to_owned();
            self.add(signature.ident.span(), what, Edit::Return(at, value.to_owned()));
        }
        self.visit_block(block);
    }
}

/// What a function can return that knows nothing.
fn values(output: &ReturnType) -> Vec<&'static str> {
    let ReturnType::Type(_, of) = output else { return vec![""] };
    let Type::Path(path) = &**of else { return Vec::new() };
    let Some(last) = path.path.segments.last() else { return Vec::new() };
    let inner = match &last.arguments {
        syn::PathArguments::AngleBracketed(inner) => inner.args.first().map(|first| match first {
            syn::GenericArgument::Type(Type::Tuple(tuple)) if tuple.elems.is_empty() => "()".into(),
            syn::GenericArgument::Type(Type::Path(path)) => {
                path.path.get_ident().map(ToString::to_string).unwrap_or_default()
            }
            _ => String::new(),
        }),
        _ => None,
    };
    match (last.ident.to_string().as_str(), inner.as_deref()) {
        ("bool", _) => vec!["true", "false"],
        ("u8" | "u16" | "u32" | "u64" | "usize" | "i32" | "i64" | "isize", _) => vec!["0", "1"],
        ("Option", _) => vec!["None"],
        ("Result" | "Outcome", Some("()")) => vec!["Ok(())"],
        ("Result" | "Outcome", Some("bool")) => vec!["Ok(true)", "Ok(false)"],
        ("Result" | "Outcome", Some("usize" | "u64" | "u32")) => vec!["Ok(0)"],
        ("String", _) => vec!["String::new()"],
        ("Vec", _) => vec!["Vec::new()"],
        _ => Vec::new(),
    }
}

/// What `{:?}` writes is for the eyes of who looks for a mistake; no page says how it looks.
fn is_debug(item: &syn::ItemImpl) -> bool {
    let name = item.trait_.as_ref().and_then(|(_, path, _)| path.segments.last());
    name.is_some_and(|name| name.ident == "Debug")
}

/// A call that has no effect but on the time that something takes: hints for the processor, and room that a collection
/// takes in advance and would otherwise take later. Only for collections: what other types reserve is theirs alone.
fn is_hint(call: &syn::ExprCall) -> bool {
    let Expr::Path(path) = &*call.func else { return false };
    let names: Vec<String> = path.path.segments.iter().map(|name| name.ident.to_string()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    matches!(
        names[..],
        ["std" | "core", "hint", _]
            | ["_mm_prefetch"]
            | ["Vec" | "VecDeque" | "String" | "HashMap" | "HashSet", "with_capacity"]
    )
}

/// Whether the clock is read here: no test can make it show the one instant in which `<` and `<=` differ.
fn reads_clock(expression: &Expr) -> bool {
    struct Looks(bool);
    impl<'a> Visit<'a> for Looks {
        fn visit_expr_method_call(&mut self, call: &'a syn::ExprMethodCall) {
            self.0 |= call.method == "elapsed" && call.args.is_empty();
            visit::visit_expr_method_call(self, call);
        }
        // What is counted or found by the clock is no time.
        fn visit_expr_closure(&mut self, _: &'a syn::ExprClosure) {}
        fn visit_expr_path(&mut self, path: &'a syn::ExprPath) {
            let mut names = path.path.segments.iter().rev().map(|name| name.ident.to_string());
            let last = (names.next(), names.next());
            let (last, before) = (last.0.as_deref(), last.1.as_deref());
            self.0 |= last == Some("now") && matches!(before, Some("Instant" | "SystemTime"));
        }
    }
    let mut looks = Looks(false);
    looks.visit_expr(expression);
    looks.0
}

/// Two operators that differ where both sides are equal, and nowhere else.
fn differs_at_equal(operator: &BinOp) -> bool {
    matches!(operator, BinOp::Lt(_) | BinOp::Le(_) | BinOp::Gt(_) | BinOp::Ge(_))
}

/// What a binary operator is exchanged for.
fn exchanged(operator: &BinOp) -> Option<&'static str> {
    Some(match operator {
        BinOp::Eq(_) => "!=",
        BinOp::Ne(_) => "==",
        BinOp::Lt(_) => "<=",
        BinOp::Le(_) => "<",
        BinOp::Gt(_) => ">=",
        BinOp::Ge(_) => ">",
        BinOp::And(_) => "||",
        BinOp::Or(_) => "&&",
        BinOp::Add(_) => "-",
        BinOp::Sub(_) => "+",
        BinOp::Mul(_) => "+",
        BinOp::Div(_) => "*",
        BinOp::Rem(_) => "/",
        BinOp::BitAnd(_) => "|",
        BinOp::BitOr(_) => "&",
        BinOp::Shl(_) => ">>",
        BinOp::Shr(_) => "<<",
        BinOp::AddAssign(_) => "-=",
        BinOp::SubAssign(_) => "+=",
        BinOp::BitOrAssign(_) => "&=",
        BinOp::BitAndAssign(_) => "|=",
        _ => return None,
    })
}

/// Whether a `let` stands in a condition, which then is no expression of its own.
fn has_let(condition: &Expr) -> bool {
    struct Looks(bool);
    impl<'a> Visit<'a> for Looks {
        fn visit_expr_let(&mut self, _: &'a syn::ExprLet) {
            self.0 = true;
        }
    }
    let mut looks = Looks(false);
    looks.visit_expr(condition);
    looks.0
}

/// A function of a type that has no value, which nobody can call.
fn is_never_called(body: &Block) -> bool {
    matches!(&body.stmts[..], [Stmt::Expr(Expr::Match(choice), None)] if choice.arms.is_empty())
}

impl<'a> Visit<'a> for Finder<'_> {
    fn visit_item_fn(&mut self, item: &'a syn::ItemFn) {
        self.function(&item.attrs, &item.sig, &item.block);
    }

    fn visit_impl_item_fn(&mut self, item: &'a syn::ImplItemFn) {
        self.function(&item.attrs, &item.sig, &item.block);
    }

    fn visit_trait_item_fn(&mut self, item: &'a syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.function(&item.attrs, &item.sig, block);
        }
    }

    fn visit_item_mod(&mut self, item: &'a syn::ItemMod) {
        if !is_left_out(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'a syn::ItemImpl) {
        if !is_left_out(&item.attrs) && !is_debug(item) {
            visit::visit_item_impl(self, item);
        }
    }

    // What is computed when it is compiled cannot be switched.
    fn visit_item_const(&mut self, _: &'a syn::ItemConst) {}
    fn visit_item_static(&mut self, _: &'a syn::ItemStatic) {}
    fn visit_impl_item_const(&mut self, _: &'a syn::ImplItemConst) {}
    fn visit_item_enum(&mut self, _: &'a syn::ItemEnum) {}
    fn visit_type(&mut self, _: &'a Type) {}
    fn visit_pat(&mut self, _: &'a syn::Pat) {}
    fn visit_expr_repeat(&mut self, item: &'a syn::ExprRepeat) {
        self.visit_expr(&item.expr);
    }
    fn visit_expr_const(&mut self, _: &'a syn::ExprConst) {}
    fn visit_generic_argument(&mut self, _: &'a syn::GenericArgument) {}

    fn visit_expr_binary(&mut self, item: &'a syn::ExprBinary) {
        let reads_clock = || reads_clock(&item.left) || reads_clock(&item.right);
        let is_of_time = differs_at_equal(&item.op) && reads_clock();
        if let Some(other) = exchanged(&item.op)
            .filter(|_| !is_of_time && !has_let(&item.left) && !has_let(&item.right))
        {
            let (left, right) = (self.text(item.left.span()), self.text(item.right.span()));
            let text = format!("{left} {other} {right}");
            let what = format!("`{}` with {other}", self.short(item.span()));
            self.add(item.op.span(), what, Edit::Replace(item.span().byte_range(), text));
        }
        visit::visit_expr_binary(self, item);
    }

    fn visit_expr_unary(&mut self, item: &'a syn::ExprUnary) {
        if let UnOp::Not(_) = item.op {
            let text = self.text(item.expr.span()).to_owned();
            let what = format!("`{}` without !", self.short(item.span()));
            self.add(item.span(), what, Edit::Replace(item.span().byte_range(), text));
        }
        visit::visit_expr_unary(self, item);
    }

    fn visit_expr_if(&mut self, item: &'a syn::ExprIf) {
        let is_compared = matches!(&*item.cond, Expr::Binary(_) | Expr::Unary(_));
        if !is_compared && !has_let(&item.cond) {
            let span = item.cond.span();
            let text = format!("!({})", self.text(span));
            let what = format!("`if {}` negated", self.short(span));
            self.add(span, what, Edit::Replace(span.byte_range(), text));
        }
        visit::visit_expr_if(self, item);
    }

    fn visit_expr_call(&mut self, item: &'a syn::ExprCall) {
        if !is_hint(item) {
            visit::visit_expr_call(self, item);
        }
    }

    fn visit_stmt(&mut self, item: &'a Stmt) {
        if is_left_out(of_statement(item)) {
            return;
        }
        if let Stmt::Expr(expression, Some(_)) = item {
            let is_alone = match expression {
                Expr::Call(call) => !is_hint(call),
                Expr::MethodCall(_) => true,
                Expr::Assign(assign) => !matches!(&*assign.left, Expr::Infer(_)),
                _ => false,
            };
            if is_alone {
                let what = format!("`{}` left out", self.short(item.span()));
                self.add(item.span(), what, Edit::Leave(item.span().byte_range()));
            }
        }
        visit::visit_stmt(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        let all = in_text("p", "f.rs", text).unwrap();
        all.iter().map(|mutant| format!("{} {}", mutant.line, mutant.what)).collect()
    }

    #[test]
    fn functions_operators_conditions_and_statements_are_found_where_they_run() {
        assert_eq!(
            found(
                "fn f(a: u32) -> bool {\n    note(a);\n    if is_even(a) { return !odd(); }\n    a < 3\n}"
            ),
            [
                "1 fn f returns true",
                "1 fn f returns false",
                "2 `note(a);` left out",
                "3 `if is_even(a)` negated",
                "3 `!odd()` without !",
                "4 `a < 3` with <=",
            ]
        );
    }

    #[test]
    fn what_no_assertion_can_notice_is_left_as_it_is() {
        assert!(found("impl fmt::Debug for A { fn fmt(&self) -> bool { f.add(1) } }").is_empty());
        assert_eq!(found("impl fmt::Display for A { fn fmt(&self) -> bool { f() } }").len(), 2);
        let of = |body: &str| found(&format!("fn f() -> A {{ {body} }}"));
        assert!(of("std::hint::spin_loop();").is_empty());
        assert!(of("Vec::with_capacity(a + 1)").is_empty());
        assert_eq!(of("Ring::with_capacity(a + 1)").len(), 1);
        assert!(of("since.elapsed() < limit").is_empty());
        assert!(of("std::time::Instant::now() >= self.end + grace").len() == 1);
        assert_eq!(of("now >= self.end").len(), 1);
        assert_eq!(of("all.filter(|a| a.elapsed() < limit).count() < 3").len(), 1);
        assert_eq!(of("since.elapsed() < limit && b").len(), 1);
        assert!(found("fn f(&self) -> bool { match *self {} }").is_empty(), "nobody has one");
        assert_eq!(found("fn f(&self) -> bool { match *self { A => b() } }").len(), 2);
    }

    #[test]
    fn constants_tests_patterns_and_const_functions_are_left_as_they_are() {
        assert!(
            found("const A: u32 = 1 + 2;\n#[cfg(test)]\nmod tests { fn f() { g(); } }").is_empty()
        );
        assert!(found("const fn f(a: u32) -> bool { a < 3 }").is_empty());
        assert!(found("#[cfg(loom)]\nfn f() { g(); }").is_empty());
        assert!(found("fn f() { #[cfg(loom)] g(); #[cfg(miri)] unsafe { h(); } }").len() == 1);
        assert_eq!(found("#[cfg(not(loom))]\nfn f() { g(); }").len(), 2);
    }
}
