//! What of a file is compiled in the build that the suites are run on: tests are not, nor is what stands for other machines
//! and other tools. A mutant there is one that nobody could notice.

use syn::punctuated::Punctuated;
use syn::{Attribute, Expr, Meta, Token};

/// Whether what has these attributes is left out of the library as the suites run it.
pub(crate) fn is_left_out(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        if attribute.path().is_ident("test") {
            return true;
        }
        let Meta::List(list) = &attribute.meta else { return false };
        list.path.is_ident("cfg") && list.parse_args::<Meta>().is_ok_and(|said| !holds(&said))
    })
}

/// Attributes of a statement, or of the expression that it is.
pub(crate) fn of_statement(statement: &syn::Stmt) -> &[Attribute] {
    match statement {
        syn::Stmt::Local(local) => &local.attrs,
        syn::Stmt::Macro(call) => &call.attrs,
        syn::Stmt::Expr(expression, _) => of_expression(expression),
        syn::Stmt::Item(_) => &[], // they are looked at one by one
    }
}

fn of_expression(expression: &Expr) -> &[Attribute] {
    match expression {
        Expr::Assign(it) => &it.attrs,
        Expr::Binary(it) => &it.attrs,
        Expr::Block(it) => &it.attrs,
        Expr::Call(it) => &it.attrs,
        Expr::ForLoop(it) => &it.attrs,
        Expr::If(it) => &it.attrs,
        Expr::Loop(it) => &it.attrs,
        Expr::Match(it) => &it.attrs,
        Expr::MethodCall(it) => &it.attrs,
        Expr::Return(it) => &it.attrs,
        Expr::Unsafe(it) => &it.attrs,
        Expr::While(it) => &it.attrs,
        _ => &[],
    }
}

/// Whether a condition holds. Features do, since the suites run with those that there are; but what is there for tests
/// alone is not the library's.
fn holds(condition: &Meta) -> bool {
    match condition {
        Meta::Path(path) => {
            !["test", "loom", "miri", "fuzzing", "windows"].iter().any(|other| path.is_ident(other))
        }
        Meta::NameValue(pair) => {
            let Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(value), .. }) = &pair.value else {
                return true;
            };
            if pair.path.is_ident("feature") {
                return !value.value().starts_with("test");
            }
            let here = match pair.path.get_ident().map(ToString::to_string).as_deref() {
                Some("target_arch") => std::env::consts::ARCH,
                Some("target_os") => std::env::consts::OS,
                Some("target_pointer_width") => "64",
                Some("target_endian") if cfg!(target_endian = "little") => "little",
                Some("target_endian") => "big",
                _ => return true,
            };
            value.value() == here
        }
        Meta::List(list) => {
            let parts = Punctuated::<Meta, Token![,]>::parse_terminated;
            let Ok(parts) = list.parse_args_with(parts) else { return true };
            if list.path.is_ident("not") {
                !parts.iter().all(holds)
            } else if list.path.is_ident("any") {
                parts.iter().any(holds)
            } else {
                parts.iter().all(holds)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_for_other_builds_is_left_out_and_nothing_else_is() {
        let is_left_out = |text: &str| {
            let item: syn::ItemFn = syn::parse_str(&format!("{text} fn f() {{}}")).unwrap();
            is_left_out(&item.attrs)
        };
        let arch = std::env::consts::ARCH;
        for left_out in [
            "#[test]",
            "#[cfg(test)]",
            "#[cfg(loom)]",
            "#[inline] #[cfg(all(test, feature = \"a\"))]",
            "#[cfg(any(test, feature = \"test-hooks\"))]",
            "#[cfg(target_arch = \"sparc\")]",
            &format!("#[cfg(not(all(target_arch = \"{arch}\", not(miri))))]"),
        ] {
            assert!(is_left_out(left_out), "{left_out}");
        }
        for stays in [
            "",
            "#[inline]",
            "#[cfg(not(test))]",
            "#[cfg(any(test, feature = \"builtin\"))]",
            &format!("#[cfg(all(target_arch = \"{arch}\", not(miri)))]"),
        ] {
            assert!(!is_left_out(stays), "{stays}");
        }
    }
}
