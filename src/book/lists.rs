//! The pages that list all mixers, or all exercises.

use super::{
    TITLE,
    frame::{around, no_library, words},
    tree::{about, all, colour, file, members, name, title, tree},
};
use crate::{
    exercises::EXERCISES,
    models::{self, Family, LETTERS},
    report::mathml::math,
};
use maud::{PreEscaped, html};

/// The first page.
pub fn index(trains: bool) -> String {
    let main = html! {
        main #main tabindex="-1" {
            h1 { (TITLE) }
            p.lead {
                (all().len()) " sequence mixers, from LSTM to Mamba-3. Each page has the equations of one, "
                "the code that computes them beside them, what it can and cannot track with the test that shows it"
                @if trains {
                    ", and the model itself: type bits and see its states, press train and watch parity being learned"
                }
                "."
            }
            @if !trains { (no_library()) }
            p {
                "A mixer is the part of a model that combines tokens. It carries a state from token to token, "
                (PreEscaped(math("S_t = A_t S_{t-1} + B_t")))
                ", and what it can track depends on the transition " (PreEscaped(math("A_t")))
                ": with eigenvalues between 0 and 1 a state fades or stays; at −1 it flips, which parity needs; a "
                "complex pair turns it."
            }
            p {
                "Where the eigenvalues of a transition are the same for every token, or real and not negative, no weights track "
                "parity at every length; products of reflections permute. Some mixers have a switch, " code { "--eigenvalues -1..1" } ", with "
                "which their states can flip. What can be learned is another matter than what can be expressed: "
                code { "docs/zoo_results.md" } " has what training found."
            }
            p { a href="tour.html" { "A guided tour of eight stops" } " leads from a counter to a rotation. "
                a href="derivatives.html" { "Backwards" } " has the derivative of every op in their code. "
                a href="table.html" { "A table" } " has all mixers beside one another. "
                a href="exercises.html" { (EXERCISES.len()) " exercises" } " are for who wants to write it all once." }
            div.halves { section {
            h2 { "The family tree" }
            p { "Each mixer stands below the one that it changes, with the one term in which it differs." }
            div.tree { (tree(None)) }
            } section {
            h2 { "By the kind of state" }
            @for family in Family::present() {
                @let members = members(family);
                h3 { span class={ "dot s" (members.first().map_or(6, |name| colour(about(name)))) } {} (family.title()) }
                ul.plain { @for name in members {
                    li { a href=(file(name)) { (title(name, about(name))) } " " span.term {
                        (about(name).line.split_once(": ").map_or("", |line| line.1))
                    } }
                } }
            }
            } }
        }
    };
    around(TITLE, &main, None)
}

/// A table of all mixers, by the kind of their state.
pub fn table() -> String {
    let main = html! {
        header.top { nav aria-label="Pages" { a href="index.html" { "The annotated zoo" } a href="tour.html" { "The tour" } } }
        main #main tabindex="-1" {
            h1 { "All mixers in one table" }
            p {
                (LETTERS) " The cost of a step is the order of its multiplications, beside the projections. "
                code { "tapezoo models" } " prints the same."
            }
            @for family in Family::present() {
                @let members = members(family);
                h2 { (family.title()) }
                div.scroll tabindex="0" role="region" aria-label=(family.title()) { table {
                    tr { @for head in ["mixer", "transition", "eigenvalues", "state", "a step", "forms"] { th scope="col" { (head) } } }
                    @for mixer in members { tr {
                        th scope="row" { a href=(file(mixer)) { (name(mixer)) } }
                        td { (PreEscaped(math(about(mixer).transition))) }
                        td { (words(about(mixer).eigenvalues)) }
                        td { (PreEscaped(math(about(mixer).state))) }
                        td { (PreEscaped(math(about(mixer).cost))) }
                        td { (forms(mixer)) }
                    } }
                } }
            }
        }
    };
    around("All mixers in one table: the annotated zoo", &main, None)
}

/// The list of exercises.
pub fn exercises() -> String {
    let main = html! {
        header.top { nav aria-label="Pages" { a href="index.html" { "The annotated zoo" } } }
        main #main tabindex="-1" {
            h1 { "Exercises" }
            p.lead { "What one has written oneself, one has understood: " (EXERCISES.len()) " files with a hole." }
            p {
                "Each is a file in " code { "exercises/" } " of the repository. It begins with what there is to know, and "
                "has a function without a body, for you to write. " code { "tapezoo exercise NAME" } " checks it, against "
                "the project's own ops, against numbers from PyTorch and at the edges, and says in words what is wrong. "
                code { "--hint" } " gives hints one at a time, " code { "--solution" } " the lines of this project that do "
                "it, and " code { "tapezoo exercise" } " alone says what is done and what is next."
            }
            ol { @for exercise in &EXERCISES { li { (exercise.title) " " code.term { (exercise.name) } } } }
        }
    };
    around("Exercises: the annotated zoo", &main, None)
}

/// The forms of a mixer.
pub fn forms(mixer: &str) -> String {
    let forms = models::forms(&models::ModelConfig { mixer: mixer.into(), ..Default::default() }).unwrap_or_default();
    forms.iter().map(|form| form.kind()).collect::<Vec<_>>().join(", ")
}
