//! The page: one file that needs nothing else, and no script.

use super::{
    figures::{Figures, capital},
    load::{Cost, Run},
    plot::{self, Figure, legend},
    section::{Section, Series, Settings, clean},
    sweep::{Drawn, Swept},
};
use crate::{
    error::count,
    tasks::{Len, less_is_better},
    train::{
        sweep::{Group, Row},
        table::{PERFECT, better, deviation, mean, number, plus_minus, rate},
    },
};
use maud::{DOCTYPE, Markup, PreEscaped, html};

/// The note on means and bands, where a section has several seeds.
const BAND: &str = "Lines are means over the seeds, bands go from the least to the greatest seed.";

/// The whole page.
pub fn page(sweeps: &[(Swept, Vec<Drawn>)], sections: &[(Section, Figures)], notes: &[String]) -> String {
    let runs = sections.iter().map(|s| s.0.runs().count()).sum();
    let whole: usize = sections.iter().map(|s| s.0.runs().filter(|r| r.end.is_some()).count()).sum();
    let lines = sections.iter().flat_map(|s| &s.0.series).map(|one| one.style + 1);
    let of_sweeps = sweeps.iter().flat_map(|s| s.0.summary.groups()).map(|group| group.models().len());
    let parts = html! { @for (s, figures) in sections { (section(s, figures)) } };
    let styles = lines.chain(of_sweeps).max().unwrap_or(0);
    let markup = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { "tapezoo report" }
                link rel="icon" href="data:,";
                style { (PreEscaped(plot::CSS)) (PreEscaped(include_str!("page.css"))) (PreEscaped(plot::hiding(styles))) }
            }
            body {
                header {
                    h1 { "tapezoo report" }
                    p {
                        (count(runs, "run")) ", " (finished(whole, runs)) ", in " (count(sections.len(), "section")) "."
                    }
                }
                main {
                    @if sections.len() + sweeps.len() > 1 { (contents(sweeps, sections)) }
                    (notices(notes))
                    @for (sweep, drawn) in sweeps { (swept(sweep, drawn)) }
                    @if sweeps.is_empty() { (parts) }
                    @else { details { summary { "Each point and each other run directory" } (parts) } }
                }
            }
        }
    };
    markup.into_string()
}

/// The list of sections, and the settings that set them apart.
fn contents(sweeps: &[(Swept, Vec<Drawn>)], sections: &[(Section, Figures)]) -> Markup {
    html! {
        nav aria-label="Sections" {
            (table(&["section", "models, or axes of a sweep", "finished"], &["models, or axes of a sweep"], html! {
                @for (sweep, _) in sweeps {
                    tr {
                        th scope="row" { a href=(format!("#{}", sweep.slug)) { "Sweep " (sweep.title) } }
                        td.text { (sweep.summary.axes().join(", ")) }
                        td { (sweep.summary.finished()) }
                    }
                }
                @for (s, _) in sections {
                    @let models: Vec<&str> = s.series.iter().map(|s| s.label.as_str()).collect();
                    tr {
                        th scope="row" { a href=(format!("#{}", s.slug)) { (s.title) } }
                        td.text { (models.join(", ")) }
                        td { (s.runs().filter(|r| r.end.is_some()).count()) " of " (s.runs().count()) }
                    }
                }
            }))
        }
    }
}

fn notices(notes: &[String]) -> Markup {
    html! {
        @if !notes.is_empty() {
            aside aria-label="Notes" {
                h2 { "Notes" }
                ul { @for note in notes { li { (clean(note)) } } }
            }
        }
    }
}

/// The results of a sweep, task by task.
fn swept(sweep: &Swept, drawn: &[Drawn]) -> Markup {
    let groups = sweep.summary.groups();
    html! {
        section id=(sweep.slug) {
            h2 { "Sweep " (sweep.title) }
            p.setup { (count(sweep.summary.finished(), "finished run")) @if !sweep.summary.axes().is_empty() { " over " (sweep.summary.axes().join(", ")) } "." }
            @for (group, drawn) in groups.iter().zip(drawn) { (task_of_a_sweep(sweep, group, drawn)) }
        }
    }
}

fn task_of_a_sweep(sweep: &Swept, group: &Group, drawn: &Drawn) -> Markup {
    let best = group.best_of_each_model();
    let axes = sweep.axes(group);
    let measure = group.measure();
    let words: Vec<&str> = axes.iter().map(|&axis| sweep.summary.axes()[axis].as_str()).collect();
    let head: Vec<&str> = ["model"].into_iter().chain(words.iter().copied()).chain(["seeds", &measure]).collect();
    let row = |row: &Row| {
        let numbers = group.numbers(row);
        html! {
            tr {
                th scope="row" { (clean(&row.model)) }
                @for &axis in &axes { td.text { (clean(&row.values[axis])) } }
                td { (numbers.len()) }
                td { (cell(group.score, mean(&numbers), deviation(&numbers), None)) }
            }
        }
    };
    html! {
        h3 { (clean(&group.task)) }
        @if best.is_empty() { p { "No run has come to its end yet." } }
        @else {
            h4 { "The best point of each model" }
            (table(&head, &words, html! { @for one in best.iter().copied() { (row(one)) } }))
            p.caption {
                "By " (measure) ", the mean over the seeds; of equals the first in the sweep's order. "
                (perfect(group.score, best.iter().filter_map(|row| mean(&group.numbers(row)))))
            }
        }
        @if !drawn.over.is_empty() {
            div.group {
                h4 { "Over each axis" }
                (legend(group.models().into_iter().filter(|model| drawn.draws(model)).map(|model| (model, sweep.style(model)))))
                div.figures { @for figure in &drawn.over { figure { (figure.inline()) } } }
                p.caption { "On the other axes each model is where it is best. " (BAND) }
            }
        }
        @if !drawn.maps.is_empty() {
            h4 { "Two axes together" }
            div.figures { @for map in &drawn.maps { figure { (map.inline()) } } }
            p.caption {
                "Means over the seeds, stronger in colour where they are greater"
                @if less_is_better(group.score) { " (less is better)" }
                ", on one scale for all models; on other axes each model is where it is best."
                @if axes.len() > 3 { " Of the pairs of axes the first three are drawn." }
            }
        }
    }
}

fn section(s: &Section, figures: &Figures) -> Markup {
    let lens = s.lens();
    html! {
        section id=(s.slug) {
            h2 { (s.title) }
            p.setup { (setup(s)) }
            @for score in s.scores() { (scores(s, &score, &lens)) }
            @if s.runs().all(|r| r.end.is_none()) { p { "No run has come to its end yet: there are no results." } }
            (drawings(s, figures))
            h3 { "Size and speed" }
            (costs(s))
            (configuration(s))
            (each_run(s, &lens))
        }
    }
}

/// The setup of a section, in a line.
fn setup(s: &Section) -> String {
    let value = |key: &str| s.shared.get(key);
    let part = |key: &str, name: &str| value(key).map(|v| format!("{name} {v}"));
    let of = |key: &str, name: &str| value(key).map(|v| format!("{v} {name}"));
    let parts = [of("steps", "steps"), part("batch", "batch of"), part("lr", "learning rate"), of("dtype", "numbers")];
    let did: Vec<String> = parts.into_iter().flatten().collect();
    let legend = s.task.as_ref().map_or(String::new(), |task| {
        let legend = task.legend();
        let end = if legend.ends_with(['?', '.']) { "" } else { "." };
        format!("Targets: {legend}{end} ")
    });
    format!("{}{}.", clean(&legend), capital(&did.join(", ")))
}

/// One score: a row a series, a column a length.
fn scores(s: &Section, score: &str, lens: &[Len]) -> Markup {
    let means: Vec<Vec<Option<f64>>> =
        s.series.iter().map(|one| lens.iter().map(|&len| mean(&one.ends(score, len))).collect()).collect();
    let best = |i: usize| means.iter().filter_map(|row| row[i]).reduce(|a, b| if better(score, b, a) { b } else { a });
    // Two scores are equal where they read equal.
    let best: Vec<Option<String>> = (0..lens.len()).map(|i| best(i).map(|x| number(Some(score), x))).collect();
    let head: Vec<String> = [score.to_string()].into_iter().chain(lens.iter().map(Len::to_string)).collect();
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    html! {
        @if means.iter().flatten().any(Option::is_some) {
            h3 { (capital(score)) " at each evaluation length" }
            (table(&head, &[], html! {
                @for (one, means) in s.series.iter().zip(&means) {
                    tr {
                        th scope="row" { (one.label) }
                        @for ((mean, len), best) in means.iter().zip(lens).zip(&best) {
                            td { (cell(score, *mean, deviation(&one.ends(score, *len)), best.as_deref())) }
                        }
                    }
                }
            }))
            p.caption {
                "Mean" @if spread(s) { " ± standard deviation" }
                " over the seeds that came to the end; the best in bold. "
                (perfect(score, means.iter().flatten().flatten().copied()))
            }
        }
    }
}

/// The note of a table in which one of these means reads 1.000.
fn perfect(score: &str, mut means: impl Iterator<Item = f64>) -> &'static str {
    if !less_is_better(score) && means.any(|x| number(Some(score), x) == "1.000") { PERFECT } else { "" }
}

fn cell(score: &str, mean: Option<f64>, deviation: Option<f64>, best: Option<&str>) -> Markup {
    let text = mean.map_or("–".into(), |x| number(Some(score), x));
    html! {
        @if Some(text.as_str()) == best { b { (text) } } @else { (text) }
        @if let Some(x) = deviation { span.dev { " " (plus_minus(x)) } }
    }
}

fn spread(s: &Section) -> bool {
    s.series.iter().any(|one| one.runs.len() > 1)
}

fn drawings(s: &Section, figures: &Figures) -> Markup {
    let key = || legend(s.series.iter().map(|one| (one.label.as_str(), one.style)));
    let grid = |figures: &[&Figure]| {
        html! { div.figures { @for figure in figures { figure { (figure.inline()) } } } }
    };
    let band = if spread(s) { BAND } else { "" };
    html! {
        @if !figures.over_length.is_empty() {
            div.group {
                h3 { "Over evaluation length" }
                (key())
                (grid(&figures.over_length.iter().collect::<Vec<_>>()))
                p.caption { (band) }
            }
        }
        @if figures.loss.is_some() || !figures.over_steps.is_empty() { div.group {
            h3 { "Over training" }
            (key())
            @let first = figures.over_steps.first().map_or(&[][..], |s| &s.1);
            (grid(&figures.loss.iter().chain(first).collect::<Vec<_>>()))
            @for (_, rest) in figures.over_steps.iter().skip(1) { (grid(&rest.iter().collect::<Vec<_>>())) }
            p.caption {
                (band)
                " The loss is that of the training batch"
                @if figures.loss_window > 1 {
                    "; each point is the mean of " (figures.loss_window) " recorded steps, and its band their extremes"
                }
                "."
                @if figures.over_steps.is_empty() {
                    " Only the end was evaluated; train with --eval-every N to see the scores over training."
                }
            }
        } }
    }
}

/// The costs of each series: means over its seeds.
fn costs(s: &Section) -> Markup {
    let of = |one: &Series, f: fn(&Cost) -> f64| {
        let ran = one.runs.iter().map(|r| &r.0).filter(|r| r.end.is_some());
        mean(&ran.filter_map(|r| r.cost.as_ref().map(f)).collect::<Vec<_>>())
    };
    let said = |x: Option<f64>, how: fn(f64) -> String| x.map_or("–".into(), how);
    html! {
        (table(&["model", "parameters", "form", "device", "steps/s", "seconds", "seeds"], &["form", "device"], html! {
            @for one in &s.series {
                @let cost = one.runs.iter().find_map(|r| r.0.cost.as_ref());
                @let whole = one.runs.iter().filter(|r| r.0.end.is_some()).count();
                tr {
                    th scope="row" { (one.label) }
                    td { (cost.map_or("–".into(), |c| c.params.to_string())) }
                    td.text { (cost.map_or("–".into(), |c| clean(&c.form))) }
                    td.text { (cost.map_or("–".into(), |c| clean(&c.device))) }
                    td { (said(of(one, |c| c.steps_per_s), rate)) }
                    td { (said(of(one, |c| c.wall_s), |s| format!("{s:.1}"))) }
                    td { (whole) @if whole < one.runs.len() { " of " (one.runs.len()) } }
                }
            }
        }))
        p.caption {
            "Training steps in a second, evaluation not counted, and seconds from start to end: means over the seeds."
        }
    }
}

fn configuration(s: &Section) -> Markup {
    let keys = s.differing();
    let head: Vec<&str> = ["key"].into_iter().chain(s.series.iter().map(|one| one.label.as_str())).collect();
    let value = |settings: &Settings, key: &str| settings.get(key).cloned().unwrap_or("–".into());
    html! {
        h3 { "Configuration" }
        @if !keys.is_empty() {
            p { "What differs between the models:" }
            (table(&head, &[], html! {
                @for key in &keys {
                    tr {
                        th scope="row" { code { (key) } }
                        @for one in &s.series { td { (value(&one.settings, key)) } }
                    }
                }
            }))
        }
        details {
            summary {
                @if s.series.len() > 1 { "What all of them share" } @else { "All of it" }
                " (" (count(s.shared.len(), "key")) ")"
            }
            dl { @for (key, value) in &s.shared { div { dt { code { (key) } } dd { (value) } } } }
        }
    }
}

/// Every run by itself.
fn each_run(s: &Section, lens: &[Len]) -> Markup {
    let lens: Vec<String> = lens.iter().map(Len::to_string).collect();
    let head: Vec<&str> =
        ["model", "seed", "score"].into_iter().chain(lens.iter().map(String::as_str)).chain(["directory"]).collect();
    let row = |one: &Series, run: &Run, from: &str, score: &str| {
        html! {
            tr {
                th scope="row" { (one.label) }
                td { (run.seed) }
                td.text { (score) }
                @for len in s.lens() {
                    @let x = run.end.as_ref().and_then(|end| end.get(score)?.get(&len).copied());
                    td { (x.map_or("–".into(), |x| number(Some(score), x))) }
                }
                td.text { (from) }
            }
        }
    };
    html! {
        details {
            summary { "Each run (" (s.runs().count()) ")" }
            (table(&head, &["score", "directory"], html! {
                @for one in &s.series {
                    @for (run, from) in &one.runs {
                        @if let Some(end) = &run.end {
                            @for score in end.keys() { (row(one, run, from, score)) }
                        } @else {
                            (row(one, run, from, if run.error.is_some() { "stopped" } else { "not finished" }))
                        }
                    }
                }
            }))
        }
    }
}

/// A table, of which these columns have words in them. It scrolls by itself where the page is narrow, also with the
/// keyboard.
fn table(head: &[&str], words: &[&str], body: Markup) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label="A table" {
            table {
                thead { tr { @for cell in head { th.text[words.contains(cell)] scope="col" { (cell) } } } }
                tbody { (body) }
            }
        }
    }
}

fn finished(whole: usize, runs: usize) -> String {
    if whole == runs { "all finished".into() } else { format!("{whole} finished") }
}
