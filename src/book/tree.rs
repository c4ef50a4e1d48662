//! The mixers in the order of the family tree, and links to their pages.

use crate::{
    inspect::view,
    models::{self, About, Family, UNKNOWN},
};
use maud::{Markup, html};

/// The file of a mixer's page.
pub fn file(mixer: &str) -> String {
    format!("{mixer}.html")
}

/// The facts that its file states.
pub fn about(mixer: &str) -> &'static About {
    models::about(mixer).unwrap_or(&UNKNOWN)
}

/// Its usual name.
pub fn title(mixer: &str, about: &About) -> String {
    let short = about.line.split(':').next().unwrap_or(mixer);
    view::of(mixer).map_or(short, |view| view.title).to_string()
}

/// The usual name of a mixer.
pub fn name(mixer: &str) -> String {
    title(mixer, about(mixer))
}

/// The colour of its family, as a number of the style sheet.
pub fn colour(about: &About) -> usize {
    Family::ALL.iter().position(|&f| f == about.family).unwrap_or(6)
}

/// The mixers that have a page: those of this crate, which have a file.
pub fn all() -> Vec<&'static str> {
    models::names().into_iter().filter(|name| models::source(name).is_some()).collect()
}

/// The mixers that change this one, or the first of each tree.
pub fn below(parent: Option<&str>) -> Vec<&'static str> {
    all().into_iter().filter(|name| about(name).parent.map(|p| p.0) == parent).collect()
}

/// The mixers of a family.
pub fn members(family: Family) -> Vec<&'static str> {
    all().into_iter().filter(|name| about(name).family == family).collect()
}

/// All mixers in the order of the tree, from the top.
pub fn order() -> Vec<&'static str> {
    fn walk(parent: Option<&str>, all: &mut Vec<&'static str>) {
        for name in below(parent) {
            all.push(name);
            walk(Some(name), all);
        }
    }
    let mut all = vec![];
    walk(None, &mut all);
    all
}

/// A link to a mixer, with the term in which it differs from its parent.
fn entry(mixer: &str, here: bool) -> Markup {
    let about = about(mixer);
    let term = about.parent.map(|p| p.1);
    html! {
        span class={ "dot s" (colour(about)) } {}
        @if here {
            b aria-current="page" { (title(mixer, about)) } " " span.here { "you are here" }
        } @else {
            a href=(file(mixer)) { (title(mixer, about)) }
        }
        @if let Some(term) = term { " " span.term { (term) } }
    }
}

/// All below a mixer, or the whole tree.
pub fn tree(parent: Option<&str>) -> Markup {
    let names = below(parent);
    html! {
        @if !names.is_empty() {
            ul { @for name in names { li { (entry(name, false)) (tree(Some(name))) } } }
        }
    }
}

/// The way from the first of the tree to this mixer, and those that change it.
pub fn family(mixer: &str) -> Markup {
    let mut path = vec![mixer];
    while let Some((parent, _)) = about(path[path.len() - 1]).parent {
        path.push(parent);
    }
    path.reverse();
    fn nested(path: &[&str], mixer: &str) -> Markup {
        html! { @if let Some((first, rest)) = path.split_first() {
            ul { li {
                (entry(first, *first == mixer))
                @if *first == mixer { (tree_below(mixer)) } @else { (nested(rest, mixer)) }
            } }
        } }
    }
    fn tree_below(mixer: &str) -> Markup {
        let names = below(Some(mixer));
        html! { @if !names.is_empty() { ul { @for name in names { li { (entry(name, false)) } } } } }
    }
    let siblings: Vec<&str> = match about(mixer).parent {
        Some((parent, _)) => below(Some(parent)).into_iter().filter(|name| *name != mixer).collect(),
        None => vec![],
    };
    html! {
        div.tree { (nested(&path, mixer)) }
        @if !siblings.is_empty() {
            p {
                "Others that change " (name(path[path.len() - 2])) ": "
                @for (i, other) in siblings.iter().enumerate() {
                    @if i > 0 { ", " }
                    a href=(file(other)) { (name(other)) }
                }
                "."
            }
        }
    }
}
