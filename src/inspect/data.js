// The data of the page. Everything is in one function: nothing is left in the global scope
// except `inspector`, for tests and for the browser's console.
'use strict';
const D = JSON.parse(document.getElementById('data').textContent);
const T = D.tokens.length;

// The selection: the step t, the block, and an index for each letter (see LETTERS).
const sel = { t: 0, layer: 0, h: 0, i: 0, j: 0, d: 0, n: 0, p: 0, s: 0, m: 0, r: 0 };
// The letters in the order of indices, and what each counts.
const LETTERS = { p: 'factor', h: 'head', r: 'memory', m: D.runs.some(run => run.mixer === 'mom') ? 'memory and head' : 'slot', i: 'row', j: 'column', d: 'unit', n: 'state', s: 'position' };

// A 16-bit float as a number.
function half(bits) {
  const sign = bits >> 15 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

// 16-bit floats as numbers, by a table of all 65,536.
let table;
function halves(bits) {
  table ??= Float32Array.from({ length: 65536 }, (_, i) => half(i));
  const all = new Float32Array(bits.length);
  for (let i = 0; i < bits.length; i++) all[i] = table[bits[i]];
  return all;
}

// The bytes of a base64 text; older browsers have no function for it.
function bytesOf(base64) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64);
  const text = atob(base64), bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

// The elements of a tensor [T, shape..], decoded on first use.
function numbers(tensor) {
  if (!tensor.numbers) {
    const { buffer } = bytesOf(tensor.data);
    tensor.numbers = tensor.dtype === 'f16' ? halves(new Uint16Array(buffer)) : new Float32Array(buffer);
    tensor.width = count(tensor);
    delete tensor.data;
  }
  return tensor.numbers;
}

// The quantity of this name in a run.
const quantity = (run, name) => run.quantities.find(q => q.name === name);
// The tensor of this name in the selected block.
const tensorOf = (run, name) => run.layers[Math.min(sel.layer, run.layers.length - 1)][name];

// How many elements a tensor has at a step.
const count = tensor => tensor.shape.reduce((a, b) => a * b, 1);

// The size of a letter's axis in a quantity; undefined where it has none, or no elements in this block.
function axis(run, q, letter) {
  const at = q.axes.indexOf(letter), tensor = tensorOf(run, q.name);
  return at >= 0 && tensor && count(tensor) > 0 ? tensor.shape[at] : undefined;
}

// The size of the longest axis of a letter in a run; undefined where no quantity has one.
function size(run, letter) {
  const known = run.longest ??= {}, key = `${letter}${sel.layer}`;
  if (!(key in known)) {
    const sizes = run.quantities.map(q => axis(run, q, letter)).filter(n => n !== undefined);
    known[key] = sizes.length ? Math.max(...sizes) : undefined;
  }
  return known[key];
}

// The size of a letter's axis in a quantity, or that of others where this block has no elements of it.
const own = (run, q, letter) => axis(run, q, letter) ?? size(run, letter);

// An index of a letter that exists in this run.
function index(run, letter, over) {
  const at = letter in over ? over[letter] : sel[letter] ?? 0;
  return Math.max(0, Math.min(at, (letter === 's' ? sel.t + 1 : size(run, letter) ?? 1) - 1));
}

// The index of a letter in a quantity, whose axis may be shorter than that of others. Its elements then serve again and
// again: one gate for all units, a rate for the heads of each memory.
const here = (run, q, letter, over = {}) => index(run, letter, over) % own(run, q, letter);

// The stride of a letter's axis in a tensor.
function strides(tensor, axes) {
  let apart = 1;
  return Object.fromEntries([...axes].map((letter, axis) => [letter, axis]).reverse().map(([letter, axis]) => {
    const here = apart;
    apart *= tensor.shape[axis];
    return [letter, here];
  }));
}

// One element: of a name at a step, at the selected indices except where `over` has others.
function value(run, name, t, over = {}) {
  const tensor = tensorOf(run, name);
  if (!tensor) return NaN;
  if (t < 0) return 0; // the state before the first token
  const data = numbers(tensor);
  const q = quantity(run, name), by = Object.entries(strides(tensor, q.axes));
  return data[by.reduce((at, [letter, apart]) => at + apart * here(run, q, letter, over), tensor.constant ? 0 : t * tensor.width)];
}

// The name of an element: the symbol with an index for each letter of its axes, counted from 1.
const cellName = (q, over) => q.axes === '' ? q.symbol : `${q.symbol}[${[...q.axes].map(letter => over[letter] + 1).join(', ')}]`;

// The text in the braces of an equation: `name`, `name-` one step before, `name@s` at position s; `a * b` a product,
// `a + b` a sum, `sum:i a * b` a sum over a letter, `h[d=u]` with the index u in the place of d, `size:i` the size of its axis, `…;m=0` with an index fixed.
function evaluate(run, text) {
  const [body, ...fixed] = text.split(';');
  const over = Object.fromEntries(fixed.map(f => [f.split('=')[0].trim(), Number(f.split('=')[1])]));
  const sized = body.match(/^size:(\w)$/);
  if (sized) return size(run, sized[1]);
  const summed = body.match(/^sum:(\w) (.*)$/);
  const factor = (name, over) => {
    const [, read, letter, as] = name.match(/^(.+)\[(\w)=(\w)\]$/) ?? [];
    if (read) return factor(read, { ...over, [letter]: over[as] });
    if (name.endsWith('@s')) return value(run, name.slice(0, -2), index(run, 's', over), over);
    return name.endsWith('-') ? value(run, name.slice(0, -1), sel.t - 1, over) : value(run, name, sel.t, over);
  };
  const product = (term, over) => term.split(' * ').reduce((p, name) => p * factor(name.trim(), over), 1);
  if (!summed) return body.split(' + ').reduce((s, term) => s + product(term, over), 0);
  const [, letter, rest] = summed;
  const n = letter === 's' ? sel.t + 1 : size(run, letter) ?? 0;
  let sum = 0;
  for (let x = 0; x < n; x++) sum += product(rest, { ...over, [letter]: x });
  return sum;
}

// Three significant digits.
function short(x) {
  if (!Number.isFinite(x)) return String(x);
  if (Number.isInteger(x) && Math.abs(x) < 1e5) return String(x).replace('-', '−');
  const digits = Math.floor(Math.log10(Math.abs(x)) + 2e-4); // 0.9999 is written as 1.00
  const text = digits < -3 || digits > 4 ? x.toExponential(2) : x.toFixed(Math.max(0, 2 - digits));
  return text.replaceAll('-', '−');
}

// The angle of a complex number in degrees; 0 where it is only rounding.
function degrees(re, im) {
  const angle = Math.atan2(im || 0, re) * 180 / Math.PI;
  return Math.abs(angle) < 5e-3 ? 0 : angle;
}

// The largest magnitude of a tensor, over all steps.
function reach(tensor) {
  if (tensor.reach === undefined) {
    let most = 0;
    for (const x of numbers(tensor)) { const a = Math.abs(x); if (a > most && a < Infinity) most = a; }
    tensor.reach = most;
  }
  return tensor.reach;
}

// An element with attributes and children; in SVG if the name says so.
function el(name, attributes = {}, ...children) {
  const node = name.startsWith('svg:')
    ? document.createElementNS('http://www.w3.org/2000/svg', name.slice(4)) : document.createElement(name);
  for (const [key, v] of Object.entries(attributes)) {
    if (key.startsWith('on')) node.addEventListener(key.slice(2), v);
    else if (v !== false && v !== undefined) node.setAttribute(key, v === true ? '' : v);
  }
  node.append(...children.filter(c => c !== undefined && c !== null));
  return node;
}

// The nodes of a text of markup that this program made.
function parsed(markup) {
  const template = el('template');
  template.innerHTML = markup;
  return template.content;
}
