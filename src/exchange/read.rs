//! From a file to a model's mixers.

use super::{
    Package,
    names::Names,
    problems::Problems,
    sizes::{LETTERS, Sizes},
    table::{Absent, Row, Table, When, either},
    tables_of,
};
use crate::{
    error::{Error, Result, brief},
    files::{
        self,
        tensors::{Numbers, Tensor, Tensors, of_file},
    },
    models::{Model, ModelConfig, Positions},
    tensor::{DType, Element, Real},
    with_real,
};
use std::{collections::BTreeSet, path::Path};

/// The layers to look for in a file.
#[derive(Clone, Debug)]
pub struct Wanted<'a> {
    /// The package whose names the file has.
    pub package: Package,
    /// The mixer that its layers are.
    pub mixer: &'a str,
    /// The prefix of a layer's names, with `{}` for its number: `model.layers.{}.attn.`. Tensors with other names are
    /// left out.
    pub prefix: &'a str,
    /// The numbers of the layers to take, in this order; none: all that are there.
    pub blocks: Option<&'a [usize]>,
    /// Sizes that are known, by their keys in a configuration, each with its source: `("heads", 4, "by --heads")`.
    pub sizes: &'a [(&'a str, usize, &'a str)],
}

impl<'a> Wanted<'a> {
    /// All layers of a file.
    pub fn of(package: Package, mixer: &'a str) -> Wanted<'a> {
        Wanted { package, mixer, prefix: "", blocks: None, sizes: &[] }
    }
}

/// For each block every row, with the contents of its tensors; none where the file lacks them.
type Blocks<T> = Vec<Vec<(&'static Row, Option<Vec<T>>)>>;

/// Layers of another package, read whole.
pub struct Layers {
    table: &'static Table,
    sizes: Sizes,
    blocks: Blocks<Numbers>,
    left_out: Vec<String>,
    /// The names of the first layer's tensors, without the prefix.
    has: BTreeSet<String>,
}

/// The tensors to take from a file.
struct Plan {
    sizes: Sizes,
    blocks: Blocks<String>,
    left_out: Vec<String>,
    has: BTreeSet<String>,
}

impl Layers {
    /// Read the layers of a file.
    ///
    /// # Errors
    /// When it cannot be read, or has no such layers: the error names every tensor that is missing, misshapen or not
    /// understood.
    pub fn read(path: &Path, wanted: &Wanted) -> Result<Layers> {
        let tables = tables_of(wanted.package, wanted.mixer)?;
        let names = Names::new(wanted.prefix);
        check(wanted)?;
        let bytes = files::read(path, files::tensors())?;
        let (tensors, _) = of_file(&bytes).map_err(|what| Error::format(path, what))?;
        // A module may keep its weights in several ways. The error is about the way that fits best.
        let mut refused: Option<(Box<Problems>, &Table)> = None;
        for table in tables {
            match plan(table, &tensors, &names, wanted) {
                Ok(Plan { sizes, blocks, left_out, has }) => {
                    let take = |name: String| tensors.get(&name).and_then(Tensor::numbers);
                    let row = |(row, names): (_, Option<Vec<String>>)| {
                        (row, names.map(|names| names.into_iter().filter_map(take).collect()))
                    };
                    let blocks = blocks.into_iter().map(|rows| rows.into_iter().map(row).collect()).collect();
                    return Ok(Layers { table, sizes, blocks, left_out, has });
                }
                Err(problems) if refused.as_ref().is_none_or(|(least, _)| problems.misfits() < least.misfits()) => {
                    refused = Some((problems, table));
                }
                Err(_) => {}
            }
        }
        let said = refused.map(|(problems, table)| problems.said(table, &tensors, &names));
        Err(Error::format(path, said.unwrap_or_default()))
    }

    /// The number of layers.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether there are no layers.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// The sizes of the layers, by the keys in a configuration.
    pub fn sizes(&self) -> Vec<(&'static str, usize)> {
        let own = LETTERS.iter().filter(|(letter, ..)| self.table.has_size(*letter));
        let own = own.filter_map(|(letter, key, _)| Some((*key, self.sizes.get(*letter)?)));
        [("layers", self.len())].into_iter().chain(own).collect()
    }

    /// The positions that a model of them has, if the layers decide it.
    pub fn positions(&self) -> Option<Positions> {
        self.table.rope.then_some(Positions::Rope)
    }

    /// A configuration with the sizes of these layers, and otherwise as given.
    pub fn config(&self, rest: &ModelConfig) -> ModelConfig {
        let mut config = ModelConfig { mixer: self.table.mixer.into(), layers: self.len(), ..rest.clone() };
        for (letter, _, field) in LETTERS.iter().filter(|(letter, ..)| self.table.has_size(*letter)) {
            *field(&mut config) = self.sizes.get(*letter).unwrap_or(*field(&mut rest.clone()));
        }
        config.positions = self.positions().unwrap_or(config.positions);
        config
    }

    /// The module that each of these layers is, as Python makes it: with these options it equals the mixer.
    pub fn module(&self, config: &ModelConfig) -> String {
        (self.table.module)(config, &|name| self.has.contains(name))
    }

    /// The tensors of the file that do not belong to them.
    pub fn left_out(&self) -> &[String] {
        &self.left_out
    }

    /// The precision of a model that loses none of their digits.
    pub fn dtype(&self) -> DType {
        let mut numbers = self.blocks.iter().flatten().filter_map(|(_, parts)| parts.as_ref()).flatten();
        if numbers.any(|x| matches!(x, Numbers::F64(_))) { DType::F64 } else { DType::F32 }
    }

    /// A model whose mixers are these layers. The rest of it is new, from this seed.
    ///
    /// # Errors
    /// When the configuration has other sizes, or no such model can be.
    pub fn model(&self, config: &ModelConfig, seed: u64) -> Result<Model> {
        let (mut own, mut asked) = (self.config(config), config.clone());
        let mut sizes = vec![("layers", own.layers, asked.layers)];
        sizes.extend(LETTERS.iter().map(|(_, key, field)| (*key, *field(&mut own), *field(&mut asked))));
        if let Some((key, own, asked)) = sizes.into_iter().find(|(_, own, asked)| own != asked) {
            return Err(Error::config(format!("{key} = {asked}: in the file it is {own}")));
        }
        if let Some(what) = self.table.cannot(config) {
            return Err(Error::config(what));
        }
        let dtype = self.dtype();
        let mut model = Model::new(config, seed, dtype)?;
        with_real!(dtype, T => self.put::<T>(&mut model))?;
        Ok(model)
    }

    /// Write every parameter of the mixers.
    fn put<T: Real + Element>(&self, model: &mut Model) -> Result<()> {
        let entries = model.params().entries().to_vec();
        let flat = model.params_mut().flat_mut().host_mut::<T>();
        for (i, (row, parts)) in self.blocks.iter().enumerate().flat_map(|(i, rows)| rows.iter().map(move |r| (i, r))) {
            let entry = super::parameter(&entries, i, row)?;
            let to = &mut flat[entry.offset..entry.offset + entry.shape.len()];
            match parts {
                Some(parts) => {
                    row.ours_of(&parts.iter().map(|part| part.to(T::of)).collect::<Vec<_>>(), &self.sizes, to)
                }
                None => to.copy_from_slice(&row.without(entry.shape.dims())),
            }
        }
        Ok(())
    }
}

/// Refuse a prefix with more than one place for the number of the layer.
pub(super) fn check_prefix(prefix: &str) -> Result<()> {
    if prefix.matches("{}").count() > 1 {
        let what = "expected at most one {}, which stands for the number of the layer";
        return Err(Error::config(format!("--prefix '{}': {what}", brief(prefix, 80))));
    }
    Ok(())
}

/// Refuse a request that is invalid.
fn check(wanted: &Wanted) -> Result<()> {
    let Wanted { prefix, blocks, .. } = wanted;
    check_prefix(prefix)?;
    let mut seen = BTreeSet::new();
    match blocks.unwrap_or_default().iter().find(|i| !seen.insert(**i)) {
        Some(i) => Err(Error::config(format!("--blocks: {i} is listed twice"))),
        None => Ok(()),
    }
}

/// The numbers of the layers to take.
fn blocks(table: &Table, tensors: &Tensors, names: &Names, wanted: &Wanted) -> std::result::Result<Vec<usize>, String> {
    match (wanted.blocks, names.are_numbered(table)) {
        (Some(blocks), true) => Ok(blocks.to_vec()),
        (None | Some([0]), false) => Ok(vec![0]),
        (Some(_), false) => Err("--blocks: no name has a number; put {} where it is in --prefix".into()),
        (None, true) => match names.there(table, tensors) {
            none if none.is_empty() => Err(format!("no layer behind '{}'", brief(names.prefix(), 120))),
            there => Ok(there),
        },
    }
}

/// The tensors to take from a file by one table, or its problems.
fn plan(
    table: &'static Table,
    tensors: &Tensors,
    names: &Names,
    wanted: &Wanted,
) -> std::result::Result<Plan, Box<Problems>> {
    let mut problems = Box::new(Problems::default());
    let blocks = blocks(table, tensors, names, wanted).unwrap_or_else(|what| {
        problems.whole.push(what);
        vec![]
    });
    // The tensors of each row of each block, by the names that the file has for them.
    let called = |either_of: &str, i| {
        let mut all = either(either_of).map(|name| names.of(name, i));
        let first = all.next().unwrap_or_default();
        if tensors.contains_key(&first) { first } else { all.find(|n| tensors.contains_key(n)).unwrap_or(first) }
    };
    let rows = |(b, &i)| {
        let rows = table.rows.iter().filter(move |row| row.is_in(b, None));
        rows.map(move |row| (row, row.theirs.iter().map(|(names, _)| called(names, i)).collect::<Vec<_>>()))
    };
    let rows: Vec<Vec<(&Row, Vec<String>)>> = blocks.iter().enumerate().map(|block| rows(block).collect()).collect();
    let parts = || rows.iter().flatten().flat_map(|(row, names)| names.iter().zip(row.theirs.iter().map(|t| t.1)));
    let is_there = |name: &String| tensors.contains_key(name);
    let there: Vec<(&str, &str, &[usize])> =
        parts().filter_map(|(name, shape)| Some((name.as_str(), shape, &tensors.get(name)?.dims[..]))).collect();
    problems.nothing = there.is_empty();

    let mut known = Sizes::default();
    for (key, value, because) in wanted.sizes {
        LETTERS.iter().filter(|letter| letter.1 == *key).for_each(|letter| known.set(letter.0, *value, because));
    }
    // A file without any filter is that of a layer without convolutions.
    let filters = || rows.iter().flatten().filter(|(row, _)| row.when == When::Conv);
    if filters().count() > 0 && !filters().flat_map(|f| &f.1).any(is_there) && known.get('W').is_none() {
        known.set('W', 0, "as there is no filter");
    }
    let mut sizes = solved(&known, &there, table.any_heads);
    if let Some([inner]) = sizes.shape("HK").as_deref().filter(|_| table.square) {
        match sizes.get('D') {
            None => sizes.set('D', *inner, "as heads are"),
            Some(width) if width != *inner => {
                let why = sizes.because("D HK");
                problems.whole.push(format!("D is {width} and HK is {inner}, expected the same, where {why}"));
            }
            Some(_) => {}
        }
    }

    for (name, shape, dims) in &there {
        if !sizes.fits(shape, dims) {
            let because = sizes.because(shape);
            let because = if because.is_empty() { String::new() } else { format!(", where {because}") };
            let expected = shown(shape, sizes.shape(shape));
            problems.shapes.push(((*name).into(), format!("{dims:?}, expected {expected}{because}")));
        }
        if let Some(dtype) = tensors.get(*name).and_then(Tensor::foreign) {
            problems.types.push(((*name).into(), format!("of {dtype}, expected F64, F32, BF16 or F16")));
        }
    }
    let mut taken = vec![];
    for rows in &rows {
        let mut block = vec![];
        let wanted = |of: &Row| rows.iter().any(|(row, names)| row.with == Some(of.ours) && names.iter().any(is_there));
        for (row, names) in rows.iter().filter(|(row, _)| row.is_in(usize::MAX, sizes.get('W'))) {
            if row.may_lack(&sizes) && !names.iter().any(is_there) && !wanted(row) {
                block.push((*row, None));
                continue;
            }
            for (name, (either_of, shape)) in names.iter().zip(row.theirs).filter(|(name, _)| !is_there(name)) {
                let others: String = either(either_of).skip(1).map(|own| format!(", also as '{own}'")).collect();
                let needed =
                    if row.absent == Absent::Idle && !row.may_lack(&sizes) { ", as it is not square" } else { "" };
                problems.missing.push((name.clone(), shown(shape, sizes.shape(shape)) + &others + needed));
            }
            block.push((*row, Some(names.clone())));
        }
        taken.push(block);
    }
    // One module is named for all of them.
    for (row, first) in taken.first().into_iter().flatten() {
        let other = taken
            .iter()
            .position(|block| block.iter().any(|(its, own)| its.ours == row.ours && own.is_some() != first.is_some()));
        if let Some(other) = other {
            let own = row.theirs.first().map_or(row.ours, |(names, _)| either(names).next().unwrap_or_default());
            let (with, without) = if first.is_some() { (0, other) } else { (other, 0) };
            let (with, without) = (blocks[with], blocks[without]);
            let what = "these are not layers of one module; --blocks takes some of them";
            problems.whole.push(format!("layer {with} has '{own}', and layer {without} has not: {what}"));
        }
    }
    let used: BTreeSet<&String> = parts().map(|(name, _)| name).collect();
    let mut left_out = vec![];
    for (name, tensor) in tensors.iter().filter(|(name, _)| !used.contains(name)) {
        let ours = match names.number(table, name) {
            Some(i) => blocks.contains(&i),
            None => !names.prefix().contains("{}") && name.starts_with(names.prefix()),
        };
        if ours {
            problems.extra.push((name.clone(), format!("{:?}", tensor.dims)))
        } else {
            left_out.push(name.clone())
        }
    }
    let heads = sizes.get('H').or(sizes.get('K')).is_some() || !table.has_size('H');
    if problems.missing.is_empty() && !problems.nothing && !heads {
        problems.whole.push("no shape tells the number of heads: pass --heads H".into());
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    let all = table.tensors().flat_map(|(names, _)| either(names));
    let has = all.filter(|name| blocks.first().is_some_and(|&i| is_there(&names.of(name, i))));
    Ok(Plan { has: has.map(|name| name.replace("{}", "0")).collect(), sizes, blocks: taken, left_out })
}

/// A shape as it is written, with its numbers if they are known: `[4HK, D] = [64, 16]`.
fn shown(shape: &str, dims: Option<Vec<usize>>) -> String {
    let written = format!("[{}]", shape.replace(' ', ", "));
    match dims {
        Some(dims) if shape.contains(|c: char| c.is_alphabetic()) => format!("{written} = {dims:?}"),
        _ => written,
    }
}

/// The sizes that most of these tensors, each with the shape of its letters and its own, have in common. Which of them
/// is the odd one out depends on which is believed first.
fn solved(known: &Sizes, tensors: &[(&str, &str, &[usize])], any_heads: bool) -> Sizes {
    const TRIES: usize = 32;
    let from = |first: usize| {
        let mut sizes = known.clone();
        let order = || tensors[first..].iter().chain(&tensors[..first]);
        let learn = |sizes: &mut Sizes| while order().any(|(name, shape, dims)| sizes.learn(shape, dims, name)) {};
        learn(&mut sizes);
        if any_heads && sizes.get('H').is_none() && sizes.get('K').is_none() {
            sizes.set('H', 1, "as their number makes no difference");
            learn(&mut sizes);
        }
        (order().filter(|(_, shape, dims)| !sizes.fits(shape, dims)).count(), sizes)
    };
    let tries = (0..tensors.len().min(TRIES)).map(from);
    tries.min_by_key(|(odd, _)| *odd).map_or_else(|| known.clone(), |(_, sizes)| sizes)
}
